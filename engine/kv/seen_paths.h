#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// Which paths of the prefix tree have been asked for of late, as hashes: what 2Q (Johnson and
// Shasha, 1994) and ARC keep as ghost lists. It tells prompts that recur from those that come once,
// and costs no pages.
//
// A bounded set whose memory is allocated at the start. A hash has one bucket in which it may
// stand, a line of the processor's cache; of a full one the hash that was seen longest ago gives
// way. To be wrong, because hashes collide or have given way, costs time or room and nothing else.
class SeenPaths {
 public:
  // At least `paths` of them, and at most kBucket more.
  explicit SeenPaths(int64_t paths);

  // Of a prompt's units, each the hash of all from the first to itself: how many of the first ones
  // have been seen before. Now all of them have.
  int32_t record(std::span<const uint64_t> paths);
  void forget();

  static constexpr int64_t kPathBytes = sizeof(uint64_t);

 private:
  static constexpr size_t kBucket = 8;
  using Bucket = std::array<uint64_t, kBucket>;  // the last seen first; 0: none

  bool record_one(uint64_t path);

  std::vector<Bucket> buckets_;
};

}  // namespace tessera
