#include "engine/kv/prefix_lookup.h"

#include <algorithm>
#include <span>

#include "engine/tier/block_hash.h"

namespace tessera {

using Node = PrefixTree::Node;

int32_t PrefixLookup::tokens_of(const KvMatch& match) const {
  return match.blocks() * shape_.prefix_block_tokens +
         match.short_ends.blocks * blocks_.tree().short_block_tokens();
}

KvMatch PrefixLookup::match(const KvPrompt& prompt, int32_t tokens, const KvMatch& known) const {
  const PrefixTree& tree = blocks_.tree();
  const bool up_to_date = known.version == tree.version() + 1;
  KvMatch match = up_to_date ? whole_blocks_of(known) : KvMatch{};
  match.windows = {};
  const int32_t length = shape_.prefix_block_tokens;
  const int32_t blocks = tokens / length;
  const uint8_t own = blocks_.levels().own_of(prompt);
  const uint8_t accept = blocks_.levels().accepted_by(prompt);
  const int32_t windowed = blocks_.windowed_blocks(own);
  int32_t with_windows = std::min(match.blocks(), windowed);  // at the end of the path
  KvMatch usable = match;
  Node node = match.blocks() > 0 ? match.node : tree.find_root(prompt.salt, own);
  while (node != PrefixTree::kNone && match.blocks() < blocks) {
    node = tree.child(node, prompt.run(match.blocks() * length, length),
                      prompt.hashes[static_cast<size_t>(match.blocks())]);
    if (node == PrefixTree::kNone || tree.grade(node) > accept ||
        !add_block(prompt, node, own, match)) {
      break;
    }
    with_windows = tree.has_windows(node) ? with_windows + 1 : 0;
    if (with_windows >= std::min(match.blocks(), windowed)) {
      usable = match;
    }
  }
  match = usable;
  match.windows.blocks = std::min(match.blocks(), windowed);
  match.windows.pages = match.windows.blocks * tree.windows_pages(own);
  add_short_blocks(prompt, tokens, match);
  match.version = tree.version() + 1;
  return match;
}

bool PrefixLookup::add_block(const KvPrompt& prompt, Node node, uint8_t own_level,
                             KvMatch& match) const {
  const PrefixTree& tree = blocks_.tree();
  const PrefixLevels& levels = blocks_.levels();
  const uint8_t level = tree.level(node);
  const bool own = level == own_level;
  if (!own && (match.blocks() + 1) * shape_.prefix_block_tokens > prompt.max_coarse) {
    return false;
  }
  const bool section = !own && levels.is_section(level);
  if (!own && !section) {  // a sequence has only one low tier
    const KvFormat low = shape_.formats[levels.tier(level)];
    if (match.low.blocks > 0 && match.low_format != low) {
      return false;
    }
    match.low_format = low;
  }
  KvRun& run = own ? match.own : section ? match.sections : match.low;
  ++run.blocks;
  run.pages += tree.prefix_block_pages(level);
  match.node = node;
  match.grade = std::max(match.grade, tree.grade(node));
  return true;
}

// A short block has the sequence's own format. Its grade is at most that of the path before it,
// which the sequence accepts.
void PrefixLookup::add_short_blocks(const KvPrompt& prompt, int32_t tokens, KvMatch& match) const {
  const PrefixTree& tree = blocks_.tree();
  const uint8_t whole = blocks_.levels().of(prompt.format);
  if (!prompt.copies_short_blocks || tree.short_block_pages(whole) == 0 || match.low.blocks > 0) {
    return;
  }
  const uint8_t own = blocks_.levels().own_of(prompt);
  const uint8_t grade = std::max(own, match.grade);
  const int32_t rest = tokens - match.blocks() * shape_.prefix_block_tokens;
  const int32_t most = std::min(rest, shape_.prefix_block_tokens - 1) / tree.short_block_tokens();
  Node node = match.blocks() > 0 ? match.node : tree.find_root(prompt.salt, own);
  for (; node != PrefixTree::kNone && match.short_ends.blocks < most; ++match.short_ends.blocks) {
    const std::span<const int32_t> block = prompt.run(tokens_of(match), tree.short_block_tokens());
    node = tree.child(node, block, block_hash(block));
    if (node == PrefixTree::kNone || tree.grade(node) > grade) {
      break;
    }
    match.node = node;
    match.short_ends.pages += tree.pages_of(node);
  }
}

KvMatch PrefixLookup::whole_blocks_of(const KvMatch& match) const {
  KvMatch whole = match;
  for (int32_t i = 0; i < match.short_ends.blocks; ++i) {
    whole.node = blocks_.tree().parent(whole.node);
  }
  whole.node = whole.blocks() > 0 ? whole.node : PrefixTree::kNone;
  whole.short_ends = {};
  return whole;
}

int64_t PrefixLookup::unlocked_pages(const KvMatch& match) const {
  const PrefixTree& tree = blocks_.tree();
  int64_t pages = 0;
  for (Node node = match.node; node >= 0 && tree.locks(node) == 0; node = tree.parent(node)) {
    pages += tree.whole_pages_of(node);
  }
  Node node = match.node;
  for (int32_t i = 0; i < match.windows.blocks; ++i, node = tree.parent(node)) {
    pages += tree.windows_locked(node) ? 0 : tree.windows_pages_of(node);
  }
  return pages;
}

int64_t PrefixLookup::section_step_pages() const {
  const PrefixLevels& levels = blocks_.levels();
  return levels.has_section_step() ? blocks_.tree().prefix_block_pages(levels.step_to()) : 0;
}

// Walks from each unlocked whole block to the first whole block of its path. The walk takes less
// time than the step that is saved: there are few blocks, because one has hundreds of tokens.
KvMatch PrefixLookup::due_block() const {
  KvMatch match;
  const PrefixTree& tree = blocks_.tree();
  const PrefixLevels& levels = blocks_.levels();
  if (!levels.has_section_step()) {
    return match;
  }
  const uint8_t whole = levels.step_from();
  for (Node node = tree.lru_of_level(whole); node != PrefixTree::kNone;
       node = tree.more_recent_of_level(node)) {
    if (tree.is_short(node)) {
      continue;
    }
    Node first = node;
    int32_t blocks = 1;
    for (Node before = tree.parent(node); before >= 0; before = tree.parent(before), ++blocks) {
      if (tree.level(before) == whole) {
        first = before;
        blocks = 0;
      }
    }
    const int32_t replay_end = (blocks + 1) * shape_.prefix_block_tokens;
    if (tree.is_unlocked(first) && replay_end <= shape_.context) {
      match.node = first;
      match.own = {1, tree.prefix_block_pages(whole)};
      match.sections = {blocks - 1, (blocks - 1) * section_step_pages()};
      match.grade = blocks > 1 ? levels.step_to() : whole;
      match.version = tree.version() + 1;
      return match;
    }
  }
  return match;
}

}  // namespace tessera
