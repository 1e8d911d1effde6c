// PrefixCache when pages run out: windows are dropped, blocks are demoted or evicted.

#include <algorithm>

#include "engine/kv/prefix_cache.h"

namespace tessera {

using Node = PrefixTree::Node;

int64_t PrefixCache::make_room(int64_t pages) {
  int64_t freed = 0;
  for (uint64_t before = tree_.version() + 1; freed < pages && before != tree_.version();) {
    before = tree_.version();
    freed += drop_windows(pages - freed);
    if (before != tree_.version()) {
      continue;
    }
    uint8_t level = 0;
    while (level < levels_.size() &&
           (next_level_[level] == kNoLevel || tree_.lru_of_level(level) == PrefixTree::kNone)) {
      ++level;
    }
    freed += level < levels_.size() ? demote(level, pages - freed) : evict(pages - freed);
  }
  return freed;
}

int64_t PrefixCache::demote(uint8_t level, int64_t pages) {
  const uint8_t next = next_level_[level];
  blocks_.clear();
  int64_t gained = 0;
  for (; gained < pages && blocks_.size() < kBatch;
       gained += tree_.prefix_block_pages(level) - tree_.prefix_block_pages(next)) {
    const Node node = tree_.lru_of_level(level);
    if (node == PrefixTree::kNone) {
      break;
    }
    blocks_.push_back({node, tier_of(level)});
    tree_.relabel(node, next, std::max(next, tree_.grade(node)));
  }
  backend_.kv_demote({arena_.pool(), blocks_, tier_of(next), scratch_}, stream_);
  counting_.demoted_blocks += std::ssize(blocks_);
  return gained;
}

int64_t PrefixCache::evict(int64_t pages, Saving saving) {
  handles_.clear();
  int64_t gained = 0;
  while (gained < pages && handles_.size() < kBatch) {
    const Node node = tree_.lru_leaf();
    if (node == PrefixTree::kNone) {
      break;
    }
    gained += tree_.pages_of(node);
    handles_.push_back(node);
    if (saving == Saving::yes) {
      save(node, false);
    }
    erase(node);
  }
  backend_.kv_evict({arena_.pool(), handles_}, stream_);
  counting_.evicted_blocks += std::ssize(handles_);
  return gained;
}

int64_t PrefixCache::flush() {
  seen_.forget();
  clear_stores();
  unpin(Time::max());
  int64_t freed = 0;
  while (tree_.lru_leaf() != PrefixTree::kNone) {
    freed += evict(tree_.unlocked_pages(), Saving::no);
  }
  return freed;
}

}  // namespace tessera
