#include "engine/kv/prefix_cache.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

using Node = PrefixTree::Node;

namespace {

int32_t most_blocks_of_path(const KvArenaShape& shape) {
  const int32_t short_blocks =
      shape.short_block_tokens > 0 ? shape.prefix_block_tokens / shape.short_block_tokens : 0;
  return shape.context / shape.prefix_block_tokens + 1 + short_blocks;
}

}  // namespace

std::vector<PrefixCache::Level> PrefixCache::levels_of(const KvArenaShape& shape) {
  std::vector<Level> levels;
  for (size_t tier = 0; tier < shape.formats.size(); ++tier) {
    levels.push_back({static_cast<uint8_t>(tier), 0});
  }
  std::stable_sort(levels.begin(), levels.end(), [&](const Level& a, const Level& b) {
    return token_bytes(shape.formats[a.tier], shape.head_dim) >
           token_bytes(shape.formats[b.tier], shape.head_dim);
  });
  levels.insert(levels.end(), shape.section_blocks.begin(), shape.section_blocks.end());
  TESSERA_CHECK(levels.size() <= PrefixTree::kMaxLevels, "more kinds of prefix blocks than levels");
  return levels;
}

PrefixTree::Shape PrefixCache::tree_shape(const KvArenaShape& shape) {
  PrefixTree::Shape tree{.blocks = shape.prefix_blocks(),
                         .prefix_block_tokens = shape.prefix_block_tokens};
  const std::vector<Level> levels = levels_of(shape);
  for (size_t level = 0; level < levels.size(); ++level) {
    const Level& of = levels[level];
    const int32_t row_pages = of.row_pages > 0
                                  ? of.row_pages
                                  : shape.prefix_block_tokens / shape.layout(of.tier).capacity;
    tree.prefix_block_pages[level] = shape.whole_rows() * row_pages;
    tree.windows_pages[level] =
        shape.windowed_rows() * shape.windowed_block_pages(of.tier, shape.prefix_block_tokens);
    if (of.row_pages == 0 && shape.has_short_blocks(of.tier)) {
      tree.short_block_tokens = shape.short_block_tokens;
      tree.short_block_pages[level] =
          shape.whole_rows() * (shape.short_block_tokens / shape.layout(of.tier).capacity);
    }
  }
  return tree;
}

PrefixCache::PrefixCache(KvArena& arena, std::span<const uint8_t> ladder, const Backend& backend,
                         Stream stream, std::span<std::byte> demote_scratch)
    : arena_(arena),
      backend_(backend),
      stream_(stream),
      levels_(levels_of(arena.shape())),
      tree_(tree_shape(arena.shape())),
      seen_(kSeenPathsPerBlock * arena.shape().prefix_blocks()),
      holders_(static_cast<size_t>(arena.shape().slots)),
      scratch_(demote_scratch),
      outliner_(tree_, most_blocks_of_path(arena.shape())) {
  const auto levels = static_cast<uint8_t>(levels_.size());
  for (uint8_t level = 0; level < levels; ++level) {
    tree_.root("", level);
  }
  next_level_.fill(kNoLevel);
  for (uint8_t level = 0; level < levels; ++level) {
    for (uint8_t lower = level + 1; lower < levels && next_level_[level] == kNoLevel; ++lower) {
      const bool on_ladder =
          !is_section(level) && !is_section(lower) &&
          std::find(ladder.begin(), ladder.end(), tier_of(lower)) != ladder.end();
      if (on_ladder && tree_.prefix_block_pages(lower) < tree_.prefix_block_pages(level)) {
        next_level_[level] = lower;
      }
    }
  }
  const auto context_blocks = static_cast<size_t>(most_blocks_of_path(arena.shape()));
  releases_.resize(static_cast<size_t>(arena.shape().prefix_blocks()));
  released_.reserve(releases_.size());
  blocks_.reserve(std::max(kBatch, context_blocks));
  shares_.reserve(context_blocks);
  handles_.reserve(kBatch);
}

uint8_t PrefixCache::level_of(KvFormat format, int32_t section_pages) const {
  for (size_t level = 0; level < levels_.size(); ++level) {
    if (arena_.shape().formats[levels_[level].tier] == format &&
        levels_[level].row_pages == section_pages) {
      return static_cast<uint8_t>(level);
    }
  }
  TESSERA_CHECK(false, "a format that the cache does not serve");
  return 0;
}

std::span<const int32_t> PrefixCache::block(std::span<const int32_t> tokens, int32_t index) const {
  const auto length = static_cast<size_t>(prefix_block_tokens());
  return tokens.subspan(static_cast<size_t>(index) * length, length);
}

void PrefixCache::report(PrefixEvents& events, KvFormat format, int32_t section_pages) {
  TESSERA_CHECK(tree_.size() == 0, "events are reported from an empty cache on");
  events.begin(arena_.shape().prefix_blocks(), prefix_block_tokens());
  reported_root_ = tree_.root("", level_of(format, section_pages));
  events_ = &events;
}

PrefixTree::Node PrefixCache::add(Node parent, const NewBlock& block, uint8_t grade) {
  const Node node = tree_.insert(parent, block.tokens, block.hash, block.level, grade);
  name(node);
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

void PrefixCache::erase(Node leaf) {
  if (events_ != nullptr) {
    events_->removed(leaf);
  }
  unsaved_.forget(leaf);
  tree_.erase(leaf);
}

// ---- match

uint8_t PrefixCache::accepted_by(const KvPrompt& prompt) const {
  const uint8_t own = level_of(prompt.format, prompt.section_pages);
  const uint8_t accept = is_section(own) ? own : std::max(own, level_of(prompt.accept));
  return prompt.accepts_sections && has_section_step() && own == whole_level_
             ? std::max(accept, section_level_)
             : accept;
}

KvMatch PrefixCache::match(const KvPrompt& prompt, int32_t tokens, const KvMatch& known) const {
  const bool up_to_date = known.version == tree_.version() + 1;
  KvMatch match = up_to_date ? whole_blocks_of(known) : KvMatch{};
  match.pages -= match.windows_pages;
  const int32_t blocks = tokens / prefix_block_tokens();
  const uint8_t own = level_of(prompt.format, prompt.section_pages);
  const uint8_t accept = accepted_by(prompt);
  const auto& formats = arena_.shape().formats;
  const int32_t windowed = windowed_blocks(own);
  int32_t with_windows = std::min(match.blocks, windowed);  // at the end of the path
  KvMatch usable = match;
  Node node = match.blocks > 0 ? match.node : tree_.find_root(prompt.salt, own);
  while (node != PrefixTree::kNone && match.blocks < blocks) {
    node = tree_.child(node, block(prompt.tokens, match.blocks),
                       prompt.hashes[static_cast<size_t>(match.blocks)]);
    if (node == PrefixTree::kNone || tree_.grade(node) > accept) {
      break;
    }
    const uint8_t level = tree_.level(node);
    if (level != own && (match.blocks + 1) * prefix_block_tokens() > prompt.max_coarse) {
      break;
    }
    if (level != own && is_section(level)) {
      ++match.section_blocks;
    } else if (level != own) {  // a sequence has only one low tier
      const KvFormat low = formats[tier_of(level)];
      if (match.low_blocks > 0 && match.low != low) {
        break;
      }
      match.low = low;
      ++match.low_blocks;
    }
    match.node = node;
    match.grade = std::max(match.grade, tree_.grade(node));
    match.pages += tree_.prefix_block_pages(level);
    ++match.blocks;
    with_windows = tree_.has_windows(node) ? with_windows + 1 : 0;
    if (with_windows >= std::min(match.blocks, windowed)) {
      usable = match;
    }
  }
  match = usable;
  match.windowed_blocks = std::min(match.blocks, windowed);
  match.windows_pages = match.windowed_blocks * tree_.windows_pages(own);
  match.pages += match.windows_pages;
  match_short_blocks(prompt, tokens, match);
  match.version = tree_.version() + 1;
  return match;
}

int64_t PrefixCache::unlocked_pages(const KvMatch& match) const {
  int64_t pages = 0;
  for (Node node = match.node; node >= 0 && tree_.locks(node) == 0; node = tree_.parent(node)) {
    pages += tree_.whole_pages_of(node);
  }
  Node node = match.node;
  for (int32_t i = 0; i < match.windowed_blocks; ++i, node = tree_.parent(node)) {
    pages += tree_.windows_locked(node) ? 0 : tree_.windows_pages_of(node);
  }
  return pages;
}

PrefixBlock PrefixCache::block_of(Node node) const {
  return {.handle = node,
          .tier = tier_of(tree_.level(node)),
          .section = is_section(tree_.level(node)),
          .short_tokens = tree_.is_short(node) ? tree_.short_block_tokens() : 0};
}

void PrefixCache::attach(int32_t slot, KvTiers tiers, int32_t section_pages, const KvMatch& match) {
  Holder& holder = at(slot);
  TESSERA_CHECK(holder.node == PrefixTree::kNone, "a slot that holds a path already");
  holder.own_level = level_of(arena_.shape().formats[tiers.high], section_pages);
  holder.grade = std::max(holder.own_level, match.grade);
  if (match.blocks + match.short_blocks == 0) {
    return;
  }
  TESSERA_CHECK(match.version == tree_.version() + 1, "a match that is out of date");
  tree_.lock(match.node);
  holder.node = match.node;
  holder.blocks = match.blocks;
  holder.short_blocks = match.short_blocks;
  holder.low_blocks = match.low_blocks;
  holder.section_blocks = match.section_blocks;
  holder.low_level = match.low_blocks > 0 ? level_of(match.low) : holder.own_level;
  blocks_.resize(static_cast<size_t>(match.blocks + match.short_blocks));
  Node node = match.node;
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block, node = tree_.parent(node)) {
    *block = block_of(node);
  }
  holder.passed = match.blocks * prefix_block_tokens();
  holder.windows_from = match.blocks - match.windowed_blocks;
  lock_windows(match.node, match.windowed_blocks);
  const KvAttachment attachments[] = {{slot, tiers, blocks_, holder.passed}};
  backend_.kv_attach({arena_.pool(), attachments}, stream_);
}

// ---- insert

int64_t PrefixCache::insert(int32_t slot, const KvPrompt& prompt, const Insertion& insertion) {
  Holder& holder = at(slot);
  const int32_t blocks = insertion.tokens / prefix_block_tokens();
  int64_t freed = 0;
  shares_.clear();
  for (; holder.blocks < blocks && !holder.stopped; ++holder.blocks) {
    const NewBlock block{this->block(prompt.tokens, holder.blocks),
                         prompt.hashes[static_cast<size_t>(holder.blocks)], holder.own_level,
                         insertion.replace_coarser};
    const Node node = claim(holder, prompt.salt, block, freed);
    if (node == PrefixTree::kNone) {
      holder.stopped = true;
      break;
    }
    const bool windows = has_windows_for(holder, holder.blocks);
    share(slot, node, insertion.stored, windows);
    holder.node = node;
    if (windows) {
      tree_.add_windows(node);
    } else {
      holder.windows_from = holder.blocks + 1;
    }
  }
  if (!shares_.empty()) {
    backend_.kv_share({arena_.pool(), shares_}, stream_);
  }
  return freed;
}

PrefixTree::Node PrefixCache::claim(const Holder& holder, std::string_view salt,
                                    const NewBlock& block, int64_t& freed) {
  const Node parent =
      holder.node == PrefixTree::kNone ? tree_.root(salt, holder.own_level) : holder.node;
  const Node node = tree_.child(parent, block.tokens, block.hash);
  if (node == PrefixTree::kNone) {
    if (tree_.full() && block.replace_coarser) {  // blocks without pages take nodes too
      freed += evict(1);
    }
    return tree_.full() ? PrefixTree::kNone : add(parent, block, holder.grade);
  }
  // Earlier matches may count on the windows of the block.
  const bool keeps_windows = !tree_.has_windows(node) || has_windows_for(holder, holder.blocks);
  if (!is_replaceable(node, block, holder.grade) || !keeps_windows) {
    return PrefixTree::kNone;
  }
  const int32_t handles[] = {node};
  backend_.kv_evict({arena_.pool(), handles}, stream_);
  freed += tree_.pages_of(node);
  tree_.drop_windows(node, false);
  if (tree_.level(node) != block.level || tree_.grade(node) != holder.grade) {
    tree_.relabel(node, block.level, holder.grade);
  }
  tree_.descend(node);
  if (tiers_ != nullptr && !tree_.is_short(node)) {
    unsaved_.add(node);
  }
  return node;
}

bool PrefixCache::is_replaceable(Node node, const NewBlock& block, uint8_t grade) const {
  const bool same_quality = tree_.level(node) == block.level && tree_.grade(node) == grade;
  return tree_.locks(node) == 0 &&
         (same_quality || (block.replace_coarser && tree_.grade(node) >= grade &&
                           tree_.level(node) >= block.level));
}

// Queues the slot's next block for kv_share.
void PrefixCache::share(int32_t slot, Node node, int32_t stored, bool windows) {
  const Holder& holder = at(slot);
  const int32_t place = holder.blocks - holder.low_blocks;  // block index in the row's high tier
  const int32_t closed = holder.section_blocks > 0 ? stored / kKvGroup * kKvGroup : 0;
  shares_.push_back({.slot = slot,
                     .tier = tier_of(holder.own_level),
                     .first = place * prefix_block_tokens(),
                     .handle = node,
                     .section = is_section(holder.own_level),
                     .closed = closed,
                     .low = holder.low_blocks * prefix_block_tokens(),
                     .windows = windows});
  ++counting_.inserted_blocks;
}

void PrefixCache::fork(int32_t source, int32_t target, int32_t tokens) {
  Holder& from = at(source);
  Holder& to = at(target);
  TESSERA_CHECK(to.node == PrefixTree::kNone && from.short_blocks == 0,
                "a slot that holds a path already, or a fork of one that is released next");
  to = from;
  to.blocks = std::min(from.blocks, tokens / prefix_block_tokens());
  TESSERA_CHECK(to.blocks >= to.low_blocks + to.section_blocks,
                "a fork before the end of the low tier or of the sections");
  const int32_t rest = tokens - to.blocks * prefix_block_tokens();
  const KvArenaShape& shape = arena_.shape();
  to.passed = tokens / prefix_block_tokens() * prefix_block_tokens();
  to.windows_from = to.blocks;  // the slot gets copies
  to.part_pages = std::min<int64_t>(
      shape.whole_rows() * (rest / shape.layout(tier_of(to.own_level)).capacity),
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

void PrefixCache::release(int32_t slot) {
  const Holder& holder = at(slot);
  if (holder.node != PrefixTree::kNone) {
    const Node last = node_of(holder, holder.blocks - 1);
    tree_.unlock(holder.node);
    // Behind the path: a leaf then goes with its windows, not after them.
    unlock_windows(last, holder.blocks - holder.windows_from);
  }
  at(slot) = {};
}

PrefixCache::HandedOver PrefixCache::hand_over(int32_t slot) {
  Holder& holder = at(slot);
  HandedOver result;
  while (holder.blocks > 0 && holder.part_pages == 0 &&
         tree_.level(holder.node) == holder.own_level && tree_.locks(holder.node) == 1 &&
         tree_.children(holder.node) == 0) {
    const Node node = holder.node;
    result.pages_freed += take_windows(holder, node);
    const Node parent = tree_.retreat(node);
    const int32_t handles[] = {node};
    backend_.kv_evict({arena_.pool(), handles}, stream_);
    erase(node);
    --holder.blocks;
    holder.node = holder.blocks > 0 ? parent : PrefixTree::kNone;
    holder.stopped = true;
    ++result.blocks;
  }
  counting_.handed_over_blocks += result.blocks;
  return result;
}

int64_t PrefixCache::cached_high_pages(int32_t slot, int32_t from_token) const {
  const Holder& holder = at(slot);
  const int32_t before = std::max(holder.low_blocks, from_token / prefix_block_tokens());
  const int32_t blocks = std::max(0, holder.blocks - before);
  const int32_t sections = from_token == 0 ? holder.section_blocks : 0;
  return (blocks - sections) * tree_.prefix_block_pages(holder.own_level) +
         sections * section_step_pages() + attached_short_pages(slot) +
         (from_token == 0 ? holder.part_pages : 0);
}

int64_t PrefixCache::cached_low_pages(int32_t slot) const {
  return at(slot).low_blocks * tree_.prefix_block_pages(at(slot).low_level);
}

int64_t PrefixCache::pages_unlocked_by_release(int32_t slot) {
  int64_t pages = 0;
  int32_t passed_on = 1;
  for (Node node = at(slot).node; node >= 0; node = tree_.parent(node)) {
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

void PrefixCache::forget_releases() {
  for (const Node node : released_) {
    releases_[static_cast<size_t>(node)] = 0;
  }
  released_.clear();
}

// ---- statistics

PrefixCacheStats PrefixCache::stats() const {
  PrefixCacheStats stats = counting_;
  stats.blocks = tree_.size();
  stats.pages = tree_.pages();
  stats.unlocked_pages = tree_.unlocked_pages();
  for (const Pin& pin : pins_) {
    for (Node node = pin.node; node >= 0; node = tree_.parent(node)) {
      ++stats.pinned_blocks;
    }
  }
  return stats;
}

void PrefixCache::outline(PrefixOutline& out) {
  outliner_.begin(out);
  for (const Holder& holder : holders_) {
    if (holder.node != PrefixTree::kNone) {
      outliner_.add_path(holder.node);
    }
  }
  for (const Pin& pin : pins_) {
    outliner_.add_path(pin.node);
  }
  outliner_.finish();
  for (PrefixOutline::Block& block : out.blocks) {
    block.format = tier_of(block.format);
    block.grade = tier_of(block.grade);
  }
}

void PrefixCache::add_pages(std::span<KvFormatPages> of_formats) const {
  for (size_t level = 0; level < levels_.size(); ++level) {
    const auto l = static_cast<uint8_t>(level);
    of_formats[tier_of(l)].shared += tree_.pages_of_level(l);
  }
}

void PrefixCache::check_integrity() const {
  tree_.check_integrity();
  for (Node node = 0; node < arena_.shape().prefix_blocks(); ++node) {
    TESSERA_CHECK(!tree_.is_unlocked(node) || arena_.is_sole_owner(node),
                  "a slot holds pages of a block that it has not locked");
  }
  for (const Holder& holder : holders_) {
    int32_t blocks = 0;
    for (Node node = holder.node; node >= 0; node = tree_.parent(node)) {
      TESSERA_CHECK(tree_.locks(node) > 0, "a slot's path that it has not locked");
      ++blocks;
    }
    TESSERA_CHECK(blocks == holder.depth(), "a slot's path length differs from its count");
  }
}

}  // namespace tessera
