#include "engine/tier/memory_store.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status MemoryStore::put(const StoredBlock& block) {
  if (find(block.id.path, block.id.grade).has_value()) {
    return absl::OkStatus();
  }
  auto contents = std::make_shared<Contents>(Contents{{block.tokens.begin(), block.tokens.end()},
                                                      {block.pages.begin(), block.pages.end()}});
  const int64_t bytes = contents->bytes();
  if (bytes > limit_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a block of ", bytes, " bytes is larger than kv-host-memory, ", limit_));
  }
  std::vector<Held> dropped;  // freed behind the lock
  const std::lock_guard lock(mutex_);
  while (blocks_.bytes() + bytes > limit_) {
    dropped.push_back(blocks_.remove_oldest());
    tell_dropped(dropped.back().name);
    ++counting_.dropped_blocks;
  }
  if (!blocks_.contains(block.id)) {
    blocks_.add(block.id, {std::move(contents), tell_stored(block.name)}, bytes);
  }
  return absl::OkStatus();
}

std::optional<BlockId> MemoryStore::find(const BlockKey& path, uint8_t accept) const {
  const std::lock_guard lock(mutex_);
  return blocks_.find(path, accept);
}

absl::StatusOr<size_t> MemoryStore::read(const BlockId& id, std::span<const int32_t> tokens,
                                         std::span<std::byte> pages) {
  std::shared_ptr<const Contents> contents;
  {
    const std::lock_guard lock(mutex_);
    const Held* const held = blocks_.use(id);
    if (held == nullptr) {
      return absl::NotFoundError("the block is not in host memory");
    }
    contents = held->contents;
  }
  if (!std::equal(tokens.begin(), tokens.end(), contents->tokens.begin(), contents->tokens.end())) {
    erase(id);
    const std::lock_guard lock(mutex_);
    ++counting_.damaged_blocks;
    return absl::DataLossError("a block of other tokens");
  }
  if (contents->pages.size() > pages.size()) {
    return absl::OutOfRangeError("a block of more bytes than expected");
  }
  std::copy(contents->pages.begin(), contents->pages.end(), pages.begin());
  return contents->pages.size();
}

void MemoryStore::erase(const BlockId& id) {
  const std::lock_guard lock(mutex_);
  if (const std::optional<Held> held = blocks_.remove(id)) {
    tell_dropped(held->name);
  }
}

void MemoryStore::clear() {
  const std::lock_guard lock(mutex_);
  while (blocks_.size() > 0) {
    tell_dropped(blocks_.remove_oldest().name);
  }
}

BlockStoreStats MemoryStore::stats() const {
  const std::lock_guard lock(mutex_);
  BlockStoreStats stats = counting_;
  stats.limit = limit_;
  stats.bytes = blocks_.bytes();
  stats.blocks = blocks_.size();
  return stats;
}

}  // namespace tessera
