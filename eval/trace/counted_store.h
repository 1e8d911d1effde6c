#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "engine/tier/block_store.h"
#include "engine/tier/recent_blocks.h"

namespace tessera {

// A store that counts the bytes of its blocks, for replays of traces. Of each block it keeps the
// first few bytes, by which a cache of one row knows the number of its pages. Blocks that were not
// used for the longest time are dropped first.
class CountedStore final : public BlockStore {
 public:
  explicit CountedStore(int64_t limit) : limit_(limit) {}

  absl::Status put(const StoredBlock& block) override;
  std::optional<BlockId> find(const BlockKey& path, uint8_t accept) const override;
  // The other bytes are left as they are.
  absl::StatusOr<size_t> read(const BlockId& id, std::span<const int32_t> tokens,
                              std::span<std::byte> pages) override;
  void erase(const BlockId& id) override;
  void clear() override;
  void sync() override {}
  BlockStoreStats stats() const override;

 private:
  struct Held {
    std::array<std::byte, 16> first = {};
    int64_t bytes = 0;
  };

  const int64_t limit_;
  mutable std::mutex mutex_;
  RecentBlocks<Held> blocks_;
  int64_t dropped_ = 0;
};

}  // namespace tessera
