#pragma once

#include <cstdint>

#include "engine/kv/kv_match.h"
#include "engine/kv/prefix_blocks.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

// What the prefix cache has of a prompt. Changes nothing.
//
// A path that has lost windows matches only as far as a continuation finds all windows that it
// reads.
class PrefixLookup {
 public:
  // Arguments outlive this.
  PrefixLookup(const PrefixBlocks& blocks, const KvArenaShape& shape)
      : blocks_(blocks), shape_(shape) {}

  // Returns: the longest cached path of `prompt`, at most `tokens` tokens. All its blocks have a
  // grade that the sequence accepts. At most one format besides the sequence's own is used.
  // `known` is an earlier result for the same sequence. If it is not out of date, the search goes
  // on from there.
  KvMatch match(const KvPrompt& prompt, int32_t tokens, const KvMatch& known) const;
  int32_t tokens_of(const KvMatch& match) const;
  // Returns: the match without its short blocks, which takes no pages for copies.
  KvMatch whole_blocks_of(const KvMatch& match) const;
  // Pages of the match that PrefixTree::unlocked_pages() counts now, and no longer after it was
  // attached.
  int64_t unlocked_pages(const KvMatch& match) const;

  // ---- section step. Whole blocks that no sequence uses are replayed, one by one, and become
  // compressed sections. A block is due when all blocks before it are sections. So its compressed
  // tokens depend on its path and its grade alone.

  // Returns: the path that ends with the least recently used block that is due; no blocks if there
  // is none. The replay behind it must fit the context.
  KvMatch due_block() const;
  // Pages of a compressed section of the section step; 0 without one.
  int64_t section_step_pages() const;

 private:
  // Adds one whole block, of a grade that the prompt accepts. own_level: of the prompt's blocks.
  // Returns: false, and adds nothing, if the prompt does not read it.
  bool add_block(const KvPrompt& prompt, PrefixTree::Node node, uint8_t own_level,
                 KvMatch& match) const;
  void add_short_blocks(const KvPrompt& prompt, int32_t tokens, KvMatch& match) const;

  const PrefixBlocks& blocks_;
  const KvArenaShape& shape_;
};

}  // namespace tessera
