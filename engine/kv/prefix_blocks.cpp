#include "engine/kv/prefix_blocks.h"

#include <algorithm>

#include "base/check.h"
#include "engine/tier/block_hash.h"
#include "kernels/kv/kv_page.h"

namespace tessera {

using Node = PrefixTree::Node;

PrefixBlocks::PrefixBlocks(KvArena& arena, std::span<const uint8_t> ladder, const Backend& backend,
                           Stream stream, std::span<std::byte> scratch)
    : arena_(arena),
      backend_(backend),
      stream_(stream),
      levels_(arena.shape(), ladder),
      tree_(levels_.tree_shape()),
      stored_(arena, tree_, levels_),
      scratch_(scratch) {
  for (uint8_t level = 0; level < levels_.size(); ++level) {
    tree_.root("", level);
  }
  batch_.reserve(kBatch);
  handles_.reserve(kBatch);
  due_.begin(static_cast<size_t>(arena.shape().prefix_blocks()));
}

void PrefixBlocks::report(PrefixEvents& events, KvFormat format, int32_t section_pages) {
  TESSERA_CHECK(tree_.size() == 0, "events are reported from an empty cache on");
  events.begin(arena_.shape().prefix_blocks(), tree_.prefix_block_tokens());
  reported_root_ = tree_.root("", levels_.of(format, section_pages));
  events_ = &events;
  stored_.report(events);
}

void PrefixBlocks::add_section_step(KvFormat format, int32_t section_pages) {
  TESSERA_CHECK(tree_.size() == 0, "a cache gets its section step while it is empty");
  levels_.add_section_step(format, section_pages);
}

// ---- places

Node PrefixBlocks::add(Node parent, const NewBlock& block, uint8_t grade) {
  const Node node = tree_.insert(parent, block.tokens, block.hash, block.level, grade);
  stored_.added(node);
  if (events_ != nullptr) {
    const bool names_none = parent < 0 && parent != reported_root_;
    if (names_none || tree_.is_short(node)) {
      events_->stored_unnamed(node);
    } else {
      events_->stored(node, parent, block.tokens);
    }
  }
  return node;
}

PrefixBlocks::Claimed PrefixBlocks::claim(Node parent, const NewBlock& block, uint8_t grade,
                                          bool windows) {
  Claimed claimed;
  const Node node = tree_.child(parent, block.tokens, block.hash);
  if (node == PrefixTree::kNone) {
    if (tree_.full() && block.replace_coarser) {  // blocks without pages take nodes too
      claimed.pages_freed = evict(1, Saving::yes);
    }
    claimed.node = tree_.full() ? PrefixTree::kNone : add(parent, block, grade);
    return claimed;
  }
  const bool keeps_windows = !tree_.has_windows(node) || windows;
  if (!is_replaceable(node, block, grade) || !keeps_windows) {
    return claimed;
  }
  drop_pages(node);
  claimed = {node, tree_.pages_of(node)};
  tree_.drop_windows(node, false);
  if (tree_.level(node) != block.level || tree_.grade(node) != grade) {
    tree_.relabel(node, block.level, grade);
  }
  tree_.descend(node);
  stored_.replaced(node);
  return claimed;
}

bool PrefixBlocks::is_replaceable(Node node, const NewBlock& block, uint8_t grade) const {
  const bool same_quality = tree_.level(node) == block.level && tree_.grade(node) == grade;
  return tree_.locks(node) == 0 &&
         (same_quality || (block.replace_coarser && tree_.grade(node) >= grade &&
                           tree_.level(node) >= block.level));
}

void PrefixBlocks::erase(Node leaf) {
  if (events_ != nullptr) {
    events_->removed(leaf);
  }
  stored_.erased(leaf);
  due_.forget(leaf);
  tree_.erase(leaf);
}

void PrefixBlocks::drop_pages(Node node) {
  const int32_t handles[] = {node};
  backend_.kv_evict({arena_.pool(), handles}, stream_);
}

Node PrefixBlocks::restore(const KvPrompt& prompt, Node before, const BlockBuffer& stored) {
  const uint8_t own = levels_.own_of(prompt);
  const Node known = before == PrefixTree::kNone ? tree_.find_root(prompt.salt, own) : before;
  const uint64_t hash = block_hash(stored.tokens);
  if (tree_.full() || (known != PrefixTree::kNone &&
                       tree_.child(known, stored.tokens, hash) != PrefixTree::kNone)) {
    return PrefixTree::kNone;
  }
  const Node parent = known == PrefixTree::kNone ? tree_.root(prompt.salt, own) : known;
  const Node node = add(parent, {stored.tokens, hash, stored.id.level, false}, stored.id.grade);
  stored_.read(stored, block_of(node));
  return node;
}

// ---- room

int64_t PrefixBlocks::make_room(int64_t pages) {
  int64_t freed = 0;
  for (uint64_t before = tree_.version() + 1; freed < pages && before != tree_.version();) {
    before = tree_.version();
    freed += drop_windows(pages - freed);
    if (before != tree_.version()) {
      continue;
    }
    uint8_t level = 0;
    while (level < levels_.size() && (levels_.below(level) == PrefixLevels::kNone ||
                                      tree_.lru_of_level(level) == PrefixTree::kNone)) {
      ++level;
    }
    freed +=
        level < levels_.size() ? demote(level, pages - freed) : evict(pages - freed, Saving::yes);
  }
  return freed;
}

int64_t PrefixBlocks::demote(uint8_t level, int64_t pages) {
  int64_t gained = 0;
  while (gained < pages && batch_.size() < kBatch) {
    const Node node = tree_.lru_of_level(level);
    if (node == PrefixTree::kNone) {
      break;
    }
    gained += lower(node);
  }
  finish_lowering();
  return gained;
}

int64_t PrefixBlocks::lower(Node node) {
  const uint8_t level = tree_.level(node);
  const uint8_t next = levels_.below(level);
  if (next == PrefixLevels::kNone || tree_.is_short(node)) {
    return 0;
  }
  if (next != lower_to_ || batch_.size() == kBatch) {
    finish_lowering();
    lower_to_ = next;
  }
  batch_.push_back({node, levels_.tier(level)});
  tree_.relabel(node, next, std::max(next, tree_.grade(node)));
  return tree_.prefix_block_pages(level) - tree_.prefix_block_pages(next);
}

void PrefixBlocks::finish_lowering() {
  if (!batch_.empty()) {
    backend_.kv_demote({arena_.pool(), batch_, levels_.tier(lower_to_), scratch_}, stream_);
    counts_.demoted_blocks += std::ssize(batch_);
    batch_.clear();
  }
}

int64_t PrefixBlocks::evict(int64_t pages, Saving saving) {
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
      stored_.save(node);
    }
    erase(node);
  }
  backend_.kv_evict({arena_.pool(), handles_}, stream_);
  counts_.evicted_blocks += std::ssize(handles_);
  return gained;
}

int64_t PrefixBlocks::flush() {
  stored_.clear();
  int64_t freed = 0;
  while (tree_.lru_leaf() != PrefixTree::kNone) {
    freed += evict(tree_.unlocked_pages(), Saving::no);
  }
  return freed;
}

// ---- windows

int32_t PrefixBlocks::windowed_blocks(uint8_t own_level) const {
  const KvArenaShape& shape = arena_.shape();
  const int32_t capacity = shape.layout(levels_.tier(own_level)).capacity;
  if (shape.windowed_rows() == 0) {
    return 0;
  }
  const int64_t seen = div_ceil(round_up(shape.window() - 1, kKvGroup), capacity);
  return static_cast<int32_t>(div_ceil(seen, tree_.prefix_block_tokens() / capacity));
}

void PrefixBlocks::lock_windows(Node last, int32_t blocks) {
  for (; blocks > 0 && last >= 0; --blocks, last = tree_.parent(last)) {
    tree_.lock_windows(last);
  }
}

void PrefixBlocks::unlock_windows(Node last, int32_t blocks) {
  for (; blocks > 0 && last >= 0; --blocks, last = tree_.parent(last)) {
    tree_.unlock_windows(last);
  }
}

// Windows and leaves go in the order in which they were last used.
int64_t PrefixBlocks::drop_windows(int64_t pages) {
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
