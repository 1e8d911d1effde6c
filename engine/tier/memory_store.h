#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/tier/block_store.h"
#include "engine/tier/recent_blocks.h"

namespace tessera {

// Prefix blocks in host memory. Each has memory of its own, because blocks of different formats
// have different bytes. Calls of put() and read() copy outside of the lock.
class MemoryStore final : public BlockStore {
 public:
  explicit MemoryStore(int64_t limit) : limit_(limit) {}

  absl::Status put(const StoredBlock& block) override;
  std::optional<BlockId> find(const BlockKey& path, uint8_t accept) const override;
  absl::StatusOr<size_t> read(const BlockId& id, std::span<const int32_t> tokens,
                              std::span<std::byte> pages) override;
  void erase(const BlockId& id) override;
  void clear() override;
  void sync() override {}
  BlockStoreStats stats() const override;

  // Bytes that a block takes besides its tokens and pages.
  static constexpr int64_t kOverhead = 256;

 private:
  struct Contents {
    std::vector<int32_t> tokens;
    std::vector<std::byte> pages;

    int64_t bytes() const {
      return std::ssize(pages) + std::ssize(tokens) * int64_t{sizeof(int32_t)} + kOverhead;
    }
  };
  struct Held {
    std::shared_ptr<const Contents> contents;
    uint64_t name = 0;  // told to PrefixEvents
  };

  const int64_t limit_;
  mutable std::mutex mutex_;
  RecentBlocks<Held> blocks_;
  BlockStoreStats counting_;
};

}  // namespace tessera
