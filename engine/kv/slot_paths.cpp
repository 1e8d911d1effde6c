#include "engine/kv/slot_paths.h"

#include <algorithm>

#include "base/check.h"
#include "engine/tier/block_hash.h"

namespace tessera {

using Node = PrefixTree::Node;

SlotPaths::SlotPaths(PrefixBlocks& blocks, KvArena& arena, const Backend& backend, Stream stream)
    : blocks_(blocks),
      tree_(blocks.tree()),
      arena_(arena),
      backend_(backend),
      stream_(stream),
      paths_(static_cast<size_t>(arena.shape().slots)),
      releases_(static_cast<size_t>(arena.shape().prefix_blocks())) {
  const auto context_blocks = static_cast<size_t>(most_blocks_of_path(arena.shape()));
  attached_.reserve(context_blocks);
  shares_.reserve(context_blocks);
  released_.reserve(releases_.size());
}

int64_t SlotPaths::tokens_of(const SlotPath& path) const {
  return int64_t{path.blocks} * block_tokens() +
         int64_t{path.short_blocks} * tree_.short_block_tokens();
}

// ---- begin and end

void SlotPaths::attach(int32_t slot, KvTiers tiers, int32_t section_pages, const KvMatch& match) {
  SlotPath& path = at(slot);
  TESSERA_CHECK(path.node == PrefixTree::kNone, "a slot that holds a path already");
  path.own_level = levels().of(arena_.shape().formats[tiers.high], section_pages);
  path.grade = std::max(path.own_level, match.grade);
  if (match.blocks() + match.short_ends.blocks == 0) {
    return;
  }
  TESSERA_CHECK(match.version == tree_.version() + 1, "a match that is out of date");
  tree_.lock(match.node);
  path.node = match.node;
  path.blocks = match.blocks();
  path.short_blocks = match.short_ends.blocks;
  path.low_blocks = match.low.blocks;
  path.section_blocks = match.sections.blocks;
  path.low_level = match.low.blocks > 0 ? levels().of(match.low_format) : path.own_level;
  attached_.resize(static_cast<size_t>(match.blocks() + match.short_ends.blocks));
  Node node = match.node;
  for (auto block = attached_.rbegin(); block != attached_.rend();
       ++block, node = tree_.parent(node)) {
    *block = blocks_.block_of(node);
  }
  path.passed = match.blocks() * block_tokens();
  path.windows_from = match.blocks() - match.windows.blocks;
  blocks_.lock_windows(match.node, match.windows.blocks);
  const KvAttachment attachments[] = {{slot, tiers, attached_, path.passed}};
  backend_.kv_attach({arena_.pool(), attachments}, stream_);
}

int64_t SlotPaths::attached_short_pages(int32_t slot) const {
  const SlotPath& path = of(slot);
  return path.short_blocks == 0
             ? 0
             : path.short_blocks * tree_.short_block_pages(levels().whole(path.own_level));
}

void SlotPaths::own_short_blocks(int32_t slot) {
  SlotPath& path = at(slot);
  backend_.kv_own({.pool = arena_.pool(),
                   .slot = slot,
                   .tier = levels().tier(path.own_level),
                   .tokens = path.short_blocks * tree_.short_block_tokens()},
                  stream_);
  for (; path.short_blocks > 0; --path.short_blocks) {
    path.node = tree_.retreat(path.node);
  }
  path.node = path.blocks > 0 ? path.node : PrefixTree::kNone;
}

void SlotPaths::fork(int32_t source, int32_t target, int32_t tokens) {
  SlotPath& from = at(source);
  SlotPath& to = at(target);
  TESSERA_CHECK(to.node == PrefixTree::kNone && from.short_blocks == 0,
                "a slot that holds a path already, or a fork of one that is released next");
  to = from;
  to.blocks = std::min(from.blocks, tokens / block_tokens());
  TESSERA_CHECK(to.blocks >= to.low_blocks + to.section_blocks,
                "a fork before the end of the low tier or of the sections");
  const int32_t rest = tokens - to.blocks * block_tokens();
  const KvArenaShape& shape = arena_.shape();
  to.passed = tokens / block_tokens() * block_tokens();
  to.windows_from = to.blocks;  // the slot gets copies
  to.part_pages = std::min<int64_t>(
      shape.whole_rows() * (rest / page_tokens(to)),
      to.blocks < from.blocks ? tree_.prefix_block_pages(to.own_level) : from.part_pages);
  for (int32_t depth = from.depth(); depth > to.depth(); --depth) {
    to.node = tree_.parent(to.node);
  }
  if (rest >= kKvGroup) {
    to.stopped = true;
    from.stopped = from.stopped || to.blocks == from.blocks;
  }
  if (to.depth() > 0) {
    tree_.lock(to.node);
  } else {
    to.node = PrefixTree::kNone;
  }
}

void SlotPaths::release(int32_t slot) {
  const SlotPath& path = of(slot);
  if (path.node != PrefixTree::kNone) {
    const Node last = node_of(path, path.blocks - 1);
    tree_.unlock(path.node);
    // Behind the path: a leaf then goes with its windows, not after them.
    blocks_.unlock_windows(last, path.blocks - path.windows_from);
  }
  at(slot) = {};
}

SlotPaths::HandedOver SlotPaths::hand_over(int32_t slot) {
  SlotPath& path = at(slot);
  HandedOver result;
  while (path.blocks > 0 && path.part_pages == 0 && tree_.level(path.node) == path.own_level &&
         tree_.locks(path.node) == 1 && tree_.children(path.node) == 0) {
    const Node node = path.node;
    result.pages_freed += take_windows(path, node);
    const Node parent = tree_.retreat(node);
    blocks_.drop_pages(node);
    blocks_.erase(node);
    --path.blocks;
    path.node = path.blocks > 0 ? parent : PrefixTree::kNone;
    path.stopped = true;
    ++result.blocks;
  }
  blocks_.counts().handed_over_blocks += result.blocks;
  return result;
}

// ---- insert

Node SlotPaths::parent_of_next(const SlotPath& path, std::string_view salt) {
  return path.node == PrefixTree::kNone ? tree_.root(salt, path.own_level) : path.node;
}

int64_t SlotPaths::insert(int32_t slot, const KvPrompt& prompt, const Insertion& insertion) {
  SlotPath& path = at(slot);
  const int32_t blocks = insertion.tokens / block_tokens();
  int64_t freed = 0;
  shares_.clear();
  for (; path.blocks < blocks && !path.stopped; ++path.blocks) {
    const bool windows = has_windows_for(path, path.blocks);
    const auto [node, pages] =
        blocks_.claim(parent_of_next(path, prompt.salt),
                      {prompt.run(path.blocks * block_tokens(), block_tokens()),
                       prompt.hashes[static_cast<size_t>(path.blocks)], path.own_level,
                       insertion.replace_coarser},
                      path.grade, windows);
    freed += pages;
    if (node == PrefixTree::kNone) {
      path.stopped = true;
      break;
    }
    shares_.push_back(
        {.slot = slot,
         .tier = levels().tier(path.own_level),
         .first = (path.blocks - path.low_blocks) * block_tokens(),  // in the row's high tier
         .handle = node,
         .section = levels().is_section(path.own_level),
         .closed = path.section_blocks > 0 ? insertion.stored / kKvGroup * kKvGroup : 0,
         .low = path.low_blocks * block_tokens(),
         .windows = windows});
    path.node = node;
    if (windows) {
      tree_.add_windows(node);
    } else {
      path.windows_from = path.blocks + 1;
    }
  }
  share_queued();
  return freed;
}

int64_t SlotPaths::insert_short_blocks(int32_t slot, const KvPrompt& prompt,
                                       const Insertion& insertion) {
  SlotPath& path = at(slot);
  const uint8_t whole = levels().whole(path.own_level);
  if (tree_.short_block_pages(whole) == 0 || path.stopped || path.low_blocks > 0) {
    return 0;
  }
  const int32_t before = path.blocks * block_tokens();
  const int32_t length = tree_.short_block_tokens();
  const int32_t rest = std::min(insertion.tokens - before, block_tokens() - 1);
  int64_t freed = 0;
  shares_.clear();
  for (; path.short_blocks < rest / length; ++path.short_blocks) {
    const int32_t first = before + path.short_blocks * length;
    const std::span<const int32_t> tokens = prompt.run(first, length);
    const auto [node, pages] =
        blocks_.claim(parent_of_next(path, prompt.salt),
                      {tokens, block_hash(tokens), whole, insertion.replace_coarser}, path.grade,
                      has_windows_for(path, path.blocks));
    freed += pages;
    if (node == PrefixTree::kNone) {
      break;
    }
    shares_.push_back({.slot = slot,
                       .tier = levels().tier(whole),
                       .first = first,
                       .handle = node,
                       .closed = insertion.stored / kKvGroup * kKvGroup,
                       .short_tokens = length});
    path.node = node;
  }
  share_queued();
  return freed;
}

void SlotPaths::share_queued() {
  blocks_.counts().inserted_blocks += std::ssize(shares_);
  if (!shares_.empty()) {
    backend_.kv_share({arena_.pool(), shares_}, stream_);
  }
}

// ---- section step

void SlotPaths::take_last_block(int32_t slot) {
  SlotPath& path = at(slot);
  TESSERA_CHECK(path.blocks == path.section_blocks + 1 && !last_is_used(slot),
                "a block that is in use, or not due, is compressed");
  blocks_.drop_pages(path.node);
  tree_.relabel(path.node, levels().step_to(), levels().step_to());
  ++path.section_blocks;
  ++blocks_.counts().compressed_blocks;
}

void SlotPaths::give_last_section(int32_t slot) {
  const SlotPath& path = of(slot);
  const KvShare shares[] = {{.slot = slot,
                             .tier = levels().tier(levels().step_to()),
                             .first = (path.blocks - 1) * block_tokens(),
                             .handle = path.node,
                             .section = true}};
  backend_.kv_share({arena_.pool(), shares}, stream_);
}

// ---- pages

int64_t SlotPaths::cached_high_pages(int32_t slot, int32_t from_token) const {
  const SlotPath& path = of(slot);
  const int32_t before = std::max(path.low_blocks, from_token / block_tokens());
  const int32_t blocks = std::max(0, path.blocks - before);
  const int32_t sections = from_token == 0 ? path.section_blocks : 0;
  const int64_t section_pages =
      sections > 0 ? sections * tree_.prefix_block_pages(levels().step_to()) : 0;
  return (blocks - sections) * tree_.prefix_block_pages(path.own_level) + section_pages +
         attached_short_pages(slot) + (from_token == 0 ? path.part_pages : 0);
}

int64_t SlotPaths::cached_low_pages(int32_t slot) const {
  return of(slot).low_blocks * tree_.prefix_block_pages(of(slot).low_level);
}

int64_t SlotPaths::pages_unlocked_by_release(int32_t slot) {
  int64_t pages = 0;
  int32_t passed_on = 1;
  for (Node node = of(slot).node; node >= 0; node = tree_.parent(node)) {
    int32_t& releases = releases_[static_cast<size_t>(node)];
    if (releases == 0) {
      released_.push_back(node);
    }
    releases += passed_on;
    if (releases < tree_.locks(node)) {
      break;
    }
    pages += tree_.whole_pages_of(node);
    pages += tree_.windows_locked(node) ? tree_.windows_pages_of(node) : 0;
    passed_on = releases;
  }
  return pages;
}

void SlotPaths::forget_releases() {
  for (const Node node : released_) {
    releases_[static_cast<size_t>(node)] = 0;
  }
  released_.clear();
}

// ---- windows. A block has them as long as there is memory. A slot locks those that its next
// queries read.

WindowedPages SlotPaths::windows_of(const SlotPath& path, int32_t block) const {
  return WindowedPages::of(arena_.shape().window(), block * block_tokens(), block_tokens(),
                           page_tokens(path));
}

Node SlotPaths::node_of(const SlotPath& path, int32_t block) const {
  Node node = path.node;
  for (int32_t i = path.depth() - 1; i > block; --i) {
    node = tree_.parent(node);
  }
  return node;
}

bool SlotPaths::has_windows_for(const SlotPath& path, int32_t block) const {
  const int32_t window = arena_.shape().window();
  return arena_.shape().windowed_rows() > 0 &&
         passed_pages(window, path.passed, page_tokens(path)) <= windows_of(path, block).kept;
}

int64_t SlotPaths::cached_windowed_pages(int32_t slot) const {
  const KvArenaShape& shape = arena_.shape();
  if (shape.windowed_rows() == 0) {
    return 0;
  }
  const SlotPath& path = of(slot);
  const int32_t first = passed_pages(shape.window(), path.passed, page_tokens(path));
  int64_t pages = 0;
  for (int32_t block = path.windows_from; block < path.blocks; ++block) {
    const WindowedPages of = windows_of(path, block);
    pages += std::max(0, of.end - std::max(first, of.kept));
  }
  return shape.windowed_rows() * pages;
}

int64_t SlotPaths::pass(int32_t slot, int32_t position) {
  SlotPath& path = at(slot);
  const int64_t cached = cached_windowed_pages(slot);
  path.passed = position;
  const int64_t left = cached_windowed_pages(slot);
  const int32_t first = passed_pages(arena_.shape().window(), position, page_tokens(path));
  while (path.windows_from < path.blocks && windows_of(path, path.windows_from).end <= first) {
    tree_.unlock_windows(node_of(path, path.windows_from));
    ++path.windows_from;
  }
  return cached - left;
}

int64_t SlotPaths::take_windows(SlotPath& path, Node last) {
  if (!tree_.has_windows(last)) {
    return 0;
  }
  const int32_t block = path.blocks - 1;
  const WindowedPages of = windows_of(path, block);
  int32_t first_own = of.end;
  if (block >= path.windows_from) {
    tree_.unlock_windows(last);
    const int32_t passed = passed_pages(arena_.shape().window(), path.passed, page_tokens(path));
    first_own = std::clamp(passed, of.kept, of.end);
  }
  path.windows_from = std::min(path.windows_from, block);
  return arena_.shape().windowed_rows() * (first_own - of.kept);
}

// ---- integrity

void SlotPaths::check_integrity() const {
  for (const SlotPath& path : paths_) {
    int32_t blocks = 0;
    for (Node node = path.node; node >= 0; node = tree_.parent(node)) {
      TESSERA_CHECK(tree_.locks(node) > 0, "a slot's path that it has not locked");
      ++blocks;
    }
    TESSERA_CHECK(blocks == path.depth(), "a slot's path length differs from its count");
  }
}

}  // namespace tessera
