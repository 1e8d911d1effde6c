#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "engine/tier/block_key.h"
#include "engine/tier/block_store.h"

namespace tessera {

// Contents of blocks in the order of their last use, with the sum of their bytes. Not thread-safe.
template <class Contents>
class RecentBlocks {
 public:
  int64_t bytes() const { return bytes_; }
  int64_t size() const { return std::ssize(entries_); }

  // Returns: the block of that path with the finest grade, if that is at most `accept`.
  std::optional<BlockId> find(const BlockKey& path, uint8_t accept) const {
    const auto entry = entries_.lower_bound(BlockId{path, 0, 0});
    const bool found =
        entry != entries_.end() && entry->first.path == path && entry->first.grade <= accept;
    return found ? std::optional(entry->first) : std::nullopt;
  }
  bool contains(const BlockId& id) const { return entries_.contains(id); }

  // Adds a block as the one that was used last.
  // Requires: no such block.
  void add(const BlockId& id, Contents contents, int64_t bytes) {
    const auto place = used_.insert(used_.end(), id);
    entries_.emplace(id, Entry{std::move(contents), bytes, place});
    bytes_ += bytes;
  }
  // Returns: the contents of a block, which was so used last; null if there is none.
  const Contents* use(const BlockId& id) {
    const auto entry = entries_.find(id);
    if (entry == entries_.end()) {
      return nullptr;
    }
    used_.splice(used_.end(), used_, entry->second.place);
    return &entry->second.contents;
  }
  // Returns: the removed contents, if there was such a block.
  std::optional<Contents> remove(const BlockId& id) {
    const auto entry = entries_.find(id);
    if (entry == entries_.end()) {
      return std::nullopt;
    }
    std::optional<Contents> contents = std::move(entry->second.contents);
    bytes_ -= entry->second.bytes;
    used_.erase(entry->second.place);
    entries_.erase(entry);
    return contents;
  }
  // Returns: the contents of the block that was not used for the longest time.
  // Requires: size() is not 0.
  Contents remove_oldest() {
    const BlockId oldest = used_.front();
    return *remove(oldest);
  }

 private:
  struct Entry {
    Contents contents;
    int64_t bytes;
    std::list<BlockId>::iterator place;
  };

  std::map<BlockId, Entry> entries_;
  std::list<BlockId> used_;  // the least recently used first
  int64_t bytes_ = 0;
};

}  // namespace tessera
