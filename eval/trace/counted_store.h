#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <span>

#include "engine/tier/block_store.h"

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
  struct Entry {
    std::array<std::byte, 16> first = {};
    int64_t bytes = 0;
    std::list<BlockId>::iterator place;
  };

  std::optional<BlockId> find_locked(const BlockKey& path, uint8_t accept) const;
  void erase_locked(const BlockId& id);

  const int64_t limit_;
  mutable std::mutex mutex_;
  std::map<BlockId, Entry> entries_;
  std::list<BlockId> used_;  // the least recently used first
  int64_t bytes_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace tessera
