// The pages of PrefixCache in layers with windows. A block has them as long as there is memory. A
// slot locks those that its next queries read.

#include <algorithm>

#include "engine/kv/prefix_cache.h"

namespace tessera {

using Node = PrefixTree::Node;

WindowedPages PrefixCache::windows_of(const Holder& holder, int32_t block) const {
  return WindowedPages::of(arena_.shape().window(), block * prefix_block_tokens(),
                           prefix_block_tokens(), page_tokens(holder));
}

int32_t PrefixCache::windowed_blocks(uint8_t own_level) const {
  const KvArenaShape& shape = arena_.shape();
  const int32_t capacity = shape.layout(tier_of(own_level)).capacity;
  if (shape.windowed_rows() == 0) {
    return 0;
  }
  const int64_t seen = div_ceil(round_up(shape.window() - 1, kKvGroup), capacity);
  return static_cast<int32_t>(div_ceil(seen, prefix_block_tokens() / capacity));
}

Node PrefixCache::node_of(const Holder& holder, int32_t block) const {
  Node node = holder.node;
  for (int32_t i = holder.depth() - 1; i > block; --i) {
    node = tree_.parent(node);
  }
  return node;
}

void PrefixCache::lock_windows(Node last, int32_t blocks) {
  for (; blocks > 0 && last >= 0; --blocks, last = tree_.parent(last)) {
    tree_.lock_windows(last);
  }
}

void PrefixCache::unlock_windows(Node last, int32_t blocks) {
  for (; blocks > 0 && last >= 0; --blocks, last = tree_.parent(last)) {
    tree_.unlock_windows(last);
  }
}

bool PrefixCache::has_windows_for(const Holder& holder, int32_t block) const {
  const int32_t window = arena_.shape().window();
  return arena_.shape().windowed_rows() > 0 &&
         passed_pages(window, holder.passed, page_tokens(holder)) <= windows_of(holder, block).kept;
}

int64_t PrefixCache::cached_pages_of_row(const Holder& holder, int32_t passed) const {
  const int32_t first = passed_pages(arena_.shape().window(), passed, page_tokens(holder));
  int64_t pages = 0;
  for (int32_t block = holder.windows_from; block < holder.blocks; ++block) {
    const WindowedPages of = windows_of(holder, block);
    pages += std::max(0, of.end - std::max(first, of.kept));
  }
  return pages;
}

int64_t PrefixCache::cached_windowed_pages(int32_t slot) const {
  const int64_t rows = arena_.shape().windowed_rows();
  return rows == 0 ? 0 : rows * cached_pages_of_row(at(slot), at(slot).passed);
}

int64_t PrefixCache::pass(int32_t slot, int32_t position) {
  Holder& holder = at(slot);
  const int64_t cached = cached_windowed_pages(slot);
  holder.passed = position;
  const int64_t left = cached_windowed_pages(slot);
  const int32_t first = passed_pages(arena_.shape().window(), position, page_tokens(holder));
  while (holder.windows_from < holder.blocks &&
         windows_of(holder, holder.windows_from).end <= first) {
    tree_.unlock_windows(node_of(holder, holder.windows_from));
    ++holder.windows_from;
  }
  return cached - left;
}

int64_t PrefixCache::take_windows(Holder& holder, Node last) {
  if (!tree_.has_windows(last)) {
    return 0;
  }
  const int32_t block = holder.blocks - 1;
  const WindowedPages of = windows_of(holder, block);
  int32_t first_own = of.end;
  if (block >= holder.windows_from) {
    tree_.unlock_windows(last);
    const int32_t passed =
        passed_pages(arena_.shape().window(), holder.passed, page_tokens(holder));
    first_own = std::clamp(passed, of.kept, of.end);
  }
  holder.windows_from = std::min(holder.windows_from, block);
  return arena_.shape().windowed_rows() * (first_own - of.kept);
}

// Windows and leaves go in the order in which they were last used.
int64_t PrefixCache::drop_windows(int64_t pages) {
  handles_.clear();
  int64_t gained = 0;
  while (gained < pages && handles_.size() < kBatch) {
    const Node node = tree_.lru_windows();
    const Node leaf = tree_.lru_leaf();
    if (node == PrefixTree::kNone ||
        (leaf != PrefixTree::kNone && !tree_.windows_before(node, leaf))) {
      break;
    }
    gained += tree_.windows_pages_of(node);
    handles_.push_back(node);
    tree_.drop_windows(node, true);
  }
  if (!handles_.empty()) {
    backend_.kv_evict({.pool = arena_.pool(), .handles = handles_, .windows_only = true}, stream_);
  }
  return gained;
}

}  // namespace tessera
