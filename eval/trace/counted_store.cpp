#include "eval/trace/counted_store.h"

#include <algorithm>
#include <optional>

namespace tessera {

absl::Status CountedStore::put(const StoredBlock& block) {
  const auto bytes = static_cast<int64_t>(block.pages.size() + block.tokens.size_bytes());
  if (bytes > limit_) {
    return absl::ResourceExhaustedError("a block larger than the store");
  }
  const std::lock_guard lock(mutex_);
  if (blocks_.find(block.id.path, block.id.grade).has_value()) {
    return absl::OkStatus();
  }
  while (blocks_.bytes() + bytes > limit_) {
    blocks_.remove_oldest();
    ++dropped_;
  }
  Held held{.bytes = bytes};
  std::copy_n(block.pages.begin(), std::min(held.first.size(), block.pages.size()),
              held.first.begin());
  blocks_.add(block.id, held, bytes);
  return absl::OkStatus();
}

std::optional<BlockId> CountedStore::find(const BlockKey& path, uint8_t accept) const {
  const std::lock_guard lock(mutex_);
  return blocks_.find(path, accept);
}

absl::StatusOr<size_t> CountedStore::read(const BlockId& id, std::span<const int32_t> tokens,
                                          std::span<std::byte> pages) {
  const std::lock_guard lock(mutex_);
  const Held* const held = blocks_.use(id);
  if (held == nullptr) {
    return absl::NotFoundError("no such block");
  }
  const size_t bytes = static_cast<size_t>(held->bytes) - tokens.size_bytes();
  if (bytes > pages.size()) {
    return absl::OutOfRangeError("a block of more bytes than expected");
  }
  std::copy_n(held->first.begin(), std::min(held->first.size(), bytes), pages.begin());
  return bytes;
}

void CountedStore::erase(const BlockId& id) {
  const std::lock_guard lock(mutex_);
  blocks_.remove(id);
}

void CountedStore::clear() {
  const std::lock_guard lock(mutex_);
  blocks_ = {};
}

BlockStoreStats CountedStore::stats() const {
  const std::lock_guard lock(mutex_);
  return {.limit = limit_,
          .bytes = blocks_.bytes(),
          .blocks = blocks_.size(),
          .dropped_blocks = dropped_};
}

}  // namespace tessera
