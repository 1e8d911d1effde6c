#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "engine/tier/block_store.h"
#include "engine/tier/disk_calls.h"
#include "engine/tier/owned_file.h"
#include "engine/tier/segment.h"

namespace tessera {

// Prefix blocks in a directory of one process, in segments (segment.h). When the limit is reached,
// the segment whose blocks were not read for the longest time is removed as a whole, so nothing is
// ever rewritten. The index of all blocks is in memory; a start reads it from the segments' lists.
//
// Durability: sync() makes blocks durable against a loss of power. A process that is killed loses
// what put() has not written; the system has the rest.
class DiskStore final : public BlockStore {
 public:
  struct Options {
    std::filesystem::path directory;   // created if there is none, for its owner alone (0700)
    int64_t limit = 0;                 // bytes of all files
    const DiskCalls* calls = nullptr;  // null: the system's. Not owned; outlives the store.
  };
  static constexpr int64_t kLeastLimit = int64_t{1} << 20;

  // Finds the blocks of earlier processes. Blocks of other checkpoints are never found, and are
  // removed in their turn.
  // Errors: InvalidArgument (a limit below kLeastLimit); FailedPrecondition (another process has
  // the directory); those of OwnedFile::open.
  static absl::StatusOr<std::unique_ptr<DiskStore>> open(const Options& options);

  absl::Status put(const StoredBlock& block) override;
  std::optional<BlockId> find(const BlockKey& path, uint8_t accept) const override;
  absl::StatusOr<size_t> read(const BlockId& id, std::span<const int32_t> tokens,
                              std::span<std::byte> pages) override;
  void erase(const BlockId& id) override;
  void clear() override;
  void sync() override;
  BlockStoreStats stats() const override;

 private:
  using Clock = std::chrono::steady_clock;
  // A segment, and its place in the order of use.
  struct Used {
    std::unique_ptr<Segment> segment;
    std::vector<BlockId> blocks;
    int64_t bytes = 0;  // of its files
    uint64_t used = 0;
    Clock::time_point touched;
  };
  struct Place {
    std::shared_ptr<Used> in;
    SegmentPlace place;
    uint64_t name = 0;  // told to PrefixEvents
  };

  DiskStore(const Options& options, OwnedFile lock);
  std::vector<uint64_t> numbers_by_use();  // of the segments in the directory
  void load();
  // Requires, of the next four: writing_ is held.
  absl::Status append(const StoredBlock& block);
  absl::Status begin_segment();
  bool drop_oldest();                                  // Returns: false if there is no segment.
  int64_t drop(const std::shared_ptr<Used>& segment);  // Returns: its blocks.
  int64_t bytes() const;                               // Requires: mutex_ is held.
  int64_t room() const;

  const std::filesystem::path directory_;
  const int64_t limit_;
  const int64_t segment_bytes_;
  const DiskCalls calls_;
  const OwnedFile lock_;
  std::mutex writing_;  // held by the calls that write
  mutable std::mutex mutex_;
  absl::btree_map<BlockId, Place> index_;
  std::vector<std::shared_ptr<Used>> segments_;  // the last one is appended to
  uint64_t next_number_ = 0;
  uint64_t time_ = 0;  // of the last use
  bool unsynced_ = false;
  BlockStoreStats counting_;
};

}  // namespace tessera
