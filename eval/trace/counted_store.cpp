#include "eval/trace/counted_store.h"

#include <algorithm>
#include <iterator>

namespace tessera {

absl::Status CountedStore::put(const StoredBlock& block) {
  const auto bytes = static_cast<int64_t>(block.pages.size() + block.tokens.size_bytes());
  if (bytes > limit_) {
    return absl::ResourceExhaustedError("a block larger than the store");
  }
  const std::lock_guard lock(mutex_);
  if (find_locked(block.id.path, block.id.grade).has_value()) {
    return absl::OkStatus();
  }
  while (bytes_ + bytes > limit_) {
    erase_locked(BlockId(used_.front()));
    ++dropped_;
  }
  used_.push_back(block.id);
  Entry& entry = entries_[block.id];
  entry.bytes = bytes;
  entry.place = std::prev(used_.end());
  std::copy_n(block.pages.begin(), std::min(entry.first.size(), block.pages.size()),
              entry.first.begin());
  bytes_ += bytes;
  return absl::OkStatus();
}

std::optional<BlockId> CountedStore::find(const BlockKey& path, uint8_t accept) const {
  const std::lock_guard lock(mutex_);
  return find_locked(path, accept);
}

std::optional<BlockId> CountedStore::find_locked(const BlockKey& path, uint8_t accept) const {
  const auto entry = entries_.lower_bound(BlockId{path, 0, 0});
  const bool found =
      entry != entries_.end() && entry->first.path == path && entry->first.grade <= accept;
  return found ? std::optional(entry->first) : std::nullopt;
}

absl::StatusOr<size_t> CountedStore::read(const BlockId& id, std::span<const int32_t> tokens,
                                          std::span<std::byte> pages) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) {
    return absl::NotFoundError("no such block");
  }
  const size_t bytes = static_cast<size_t>(entry->second.bytes) - tokens.size_bytes();
  if (bytes > pages.size()) {
    return absl::OutOfRangeError("a block of more bytes than expected");
  }
  used_.splice(used_.end(), used_, entry->second.place);
  std::copy_n(entry->second.first.begin(), std::min(entry->second.first.size(), bytes),
              pages.begin());
  return bytes;
}

void CountedStore::erase(const BlockId& id) {
  const std::lock_guard lock(mutex_);
  erase_locked(id);
}

void CountedStore::erase_locked(const BlockId& id) {
  const auto entry = entries_.find(id);
  if (entry != entries_.end()) {
    bytes_ -= entry->second.bytes;
    used_.erase(entry->second.place);
    entries_.erase(entry);
  }
}

void CountedStore::clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  used_.clear();
  bytes_ = 0;
}

BlockStoreStats CountedStore::stats() const {
  const std::lock_guard lock(mutex_);
  return {.limit = limit_,
          .bytes = bytes_,
          .blocks = static_cast<int64_t>(entries_.size()),
          .dropped_blocks = dropped_};
}

}  // namespace tessera
