#include "engine/tier/memory_store.h"

#include <algorithm>

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
  std::vector<std::shared_ptr<const Contents>> dropped;  // freed behind the lock
  const std::lock_guard lock(mutex_);
  while (bytes_ + bytes > limit_) {
    const auto oldest = entries_.find(used_.front());
    dropped.push_back(oldest->second.contents);
    erase(oldest);
    ++counting_.dropped_blocks;
  }
  const auto place = used_.insert(used_.end(), block.id);
  const auto [entry, is_new] = entries_.try_emplace(block.id, Entry{contents, place, 0});
  if (!is_new) {
    used_.erase(place);
    return absl::OkStatus();
  }
  entry->second.name = tell_stored(block.name);
  bytes_ += bytes;
  return absl::OkStatus();
}

std::optional<BlockId> MemoryStore::find(const BlockKey& path, uint8_t accept) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.lower_bound(BlockId{path, 0, 0});
  const bool found =
      entry != entries_.end() && entry->first.path == path && entry->first.grade <= accept;
  return found ? std::optional(entry->first) : std::nullopt;
}

absl::StatusOr<size_t> MemoryStore::read(const BlockId& id, std::span<const int32_t> tokens,
                                         std::span<std::byte> pages) {
  std::shared_ptr<const Contents> contents;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(id);
    if (entry == entries_.end()) {
      return absl::NotFoundError("the block is not in host memory");
    }
    contents = entry->second.contents;
    used_.splice(used_.end(), used_, entry->second.place);
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
  if (const auto entry = entries_.find(id); entry != entries_.end()) {
    erase(entry);
  }
}

void MemoryStore::erase(Entries::iterator entry) {
  tell_dropped(entry->second.name);
  bytes_ -= entry->second.contents->bytes();
  used_.erase(entry->second.place);
  entries_.erase(entry);
}

void MemoryStore::clear() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_) {
    tell_dropped(entry.name);
  }
  entries_.clear();
  used_.clear();
  bytes_ = 0;
}

BlockStoreStats MemoryStore::stats() const {
  const std::lock_guard lock(mutex_);
  BlockStoreStats stats = counting_;
  stats.limit = limit_;
  stats.bytes = bytes_;
  stats.blocks = std::ssize(entries_);
  return stats;
}

}  // namespace tessera
