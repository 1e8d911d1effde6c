// The short blocks of PrefixCache: the tokens behind a path's last whole block.

#include <algorithm>

#include "engine/kv/prefix_cache.h"

namespace tessera {

using Node = PrefixTree::Node;

std::span<const int32_t> PrefixCache::short_block(std::span<const int32_t> tokens, int32_t blocks,
                                                  int32_t index) const {
  const auto length = static_cast<size_t>(tree_.short_block_tokens());
  const auto before = static_cast<size_t>(blocks) * static_cast<size_t>(prefix_block_tokens());
  return tokens.subspan(before + static_cast<size_t>(index) * length, length);
}

// A short block has the sequence's own format. Its grade is at most that of the path before it,
// which the sequence accepts.
void PrefixCache::match_short_blocks(const KvPrompt& prompt, int32_t tokens, KvMatch& match) const {
  const uint8_t whole = level_of(prompt.format);
  if (!prompt.copies_short_blocks || tree_.short_block_pages(whole) == 0 || match.low_blocks > 0) {
    return;
  }
  const uint8_t own = level_of(prompt.format, prompt.section_pages);
  const uint8_t grade = std::max(own, match.grade);
  const int32_t rest = tokens - match.blocks * prefix_block_tokens();
  const int32_t most = std::min(rest, prefix_block_tokens() - 1) / tree_.short_block_tokens();
  Node node = match.blocks > 0 ? match.node : tree_.find_root(prompt.salt, own);
  for (; node != PrefixTree::kNone && match.short_blocks < most; ++match.short_blocks) {
    const std::span<const int32_t> block =
        short_block(prompt.tokens, match.blocks, match.short_blocks);
    node = tree_.child(node, block, PrefixTree::hash(block));
    if (node == PrefixTree::kNone || tree_.grade(node) > grade) {
      break;
    }
    match.node = node;
    match.pages += tree_.pages_of(node);
    match.short_pages += tree_.pages_of(node);
  }
}

KvMatch PrefixCache::whole_blocks_of(const KvMatch& match) const {
  KvMatch whole = match;
  for (; whole.short_blocks > 0; --whole.short_blocks) {
    whole.node = tree_.parent(whole.node);
  }
  whole.node = whole.blocks > 0 ? whole.node : PrefixTree::kNone;
  whole.pages -= whole.short_pages;
  whole.short_pages = 0;
  return whole;
}

int64_t PrefixCache::attached_short_pages(int32_t slot) const {
  const Holder& holder = at(slot);
  return holder.short_blocks == 0
             ? 0
             : holder.short_blocks * tree_.short_block_pages(whole_level_of(holder));
}

void PrefixCache::own_short_blocks(int32_t slot) {
  Holder& holder = at(slot);
  backend_.kv_own({.pool = arena_.pool(),
                   .slot = slot,
                   .tier = tier_of(holder.own_level),
                   .tokens = holder.short_blocks * tree_.short_block_tokens()},
                  stream_);
  for (; holder.short_blocks > 0; --holder.short_blocks) {
    holder.node = tree_.retreat(holder.node);
  }
  holder.node = holder.blocks > 0 ? holder.node : PrefixTree::kNone;
}

int64_t PrefixCache::insert_short_blocks(int32_t slot, const KvPrompt& prompt,
                                         const Insertion& insertion) {
  Holder& holder = at(slot);
  const uint8_t whole = whole_level_of(holder);
  if (tree_.short_block_pages(whole) == 0 || holder.stopped || holder.low_blocks > 0) {
    return 0;
  }
  const int32_t before = holder.blocks * prefix_block_tokens();
  const int32_t rest = std::min(insertion.tokens - before, prefix_block_tokens() - 1);
  const int32_t closed = insertion.stored / kKvGroup * kKvGroup;
  int64_t freed = 0;
  shares_.clear();
  for (; holder.short_blocks < rest / tree_.short_block_tokens(); ++holder.short_blocks) {
    const std::span<const int32_t> tokens =
        short_block(prompt.tokens, holder.blocks, holder.short_blocks);
    const NewBlock block{tokens, PrefixTree::hash(tokens), whole, insertion.replace_coarser};
    const Node node = claim(holder, prompt.salt, block, freed);
    if (node == PrefixTree::kNone) {
      break;
    }
    shares_.push_back({.slot = slot,
                       .tier = tier_of(whole),
                       .first = before + holder.short_blocks * tree_.short_block_tokens(),
                       .handle = node,
                       .closed = closed,
                       .short_tokens = tree_.short_block_tokens()});
    ++counting_.inserted_blocks;
    holder.node = node;
  }
  if (!shares_.empty()) {
    backend_.kv_share({arena_.pool(), shares_}, stream_);
  }
  return freed;
}

}  // namespace tessera
