#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// Hashes of prefix-tree paths that occurred in recent prompts, like the ghost lists of 2Q (Johnson
// and Shasha, 1994) and ARC. It distinguishes recurring prompts from single ones and costs no
// pages.
//
// A bounded set whose memory is allocated at the start. Each hash has one possible bucket, which is
// one line of the processor's cache. A full bucket replaces its least recently seen hash. A wrong
// answer, from a hash collision or a replaced hash, costs only time or memory.
class SeenPaths {
 public:
  // Capacity: at least `paths` hashes, and at most kBucket more.
  explicit SeenPaths(int64_t paths);

  // Records all path hashes of a prompt. paths: [blocks], each the hash of all blocks up to itself.
  // Returns: number of first blocks that were recorded before.
  int32_t record(std::span<const uint64_t> paths);
  void forget();

  static constexpr int64_t kPathBytes = sizeof(uint64_t);

 private:
  static constexpr size_t kBucket = 8;
  using Bucket = std::array<uint64_t, kBucket>;  // most recent first; 0: empty

  bool record_one(uint64_t path);

  std::vector<Bucket> buckets_;
};

}  // namespace tessera
