#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/kv_match.h"
#include "engine/kv/prefix_tree.h"
#include "kernels/kv/kv_arena.h"
#include "kernels/kv/kv_pool.h"

namespace tessera {

// The kinds of an arena's prefix blocks, which are the levels of its prefix tree: each format once,
// the most precise first, and compressed sections behind all formats.
class PrefixLevels {
 public:
  static constexpr uint8_t kNone = PrefixTree::kMaxLevels;

  // ladder: formats to which blocks may be demoted, as indices into the arena's formats.
  // Requires: an arena with prefix blocks; all formats of `ladder` are among prefix_block_tiers;
  // `shape` outlives this.
  PrefixLevels(const KvArenaShape& shape, std::span<const uint8_t> ladder);

  uint8_t size() const { return static_cast<uint8_t>(levels_.size()); }
  // section_pages: see KvPrompt.
  // Requires: the arena has such blocks.
  uint8_t of(KvFormat format, int32_t section_pages = 0) const;
  uint8_t tier(uint8_t level) const { return levels_[level].tier; }  // index among the formats
  bool is_section(uint8_t level) const { return levels_[level].row_pages > 0; }
  // Returns: the level of whole blocks in the same format.
  uint8_t whole(uint8_t level) const { return of(shape_.formats[tier(level)]); }
  // Returns: the level to which blocks are demoted next, or kNone.
  uint8_t below(uint8_t level) const { return below_[level]; }
  // Returns: the level of the prompt's own blocks, and the coarsest grade that it reads.
  uint8_t own_of(const KvPrompt& prompt) const { return of(prompt.format, prompt.section_pages); }
  uint8_t accepted_by(const KvPrompt& prompt) const;

  // Returns: the node's block, as ops take it.
  PrefixBlock block_of(const PrefixTree& tree, PrefixTree::Node node) const {
    return {.handle = node,
            .tier = tier(tree.level(node)),
            .section = is_section(tree.level(node)),
            .short_tokens = tree.is_short(node) ? tree.short_block_tokens() : 0};
  }

  // From now on whole blocks of this format may be compressed to sections (SectionStep).
  // Requires: the arena has such section blocks.
  void add_section_step(KvFormat format, int32_t section_pages);
  bool has_section_step() const { return section_ != kNone; }
  // Levels before and after the section step.
  // Requires: has_section_step().
  uint8_t step_from() const { return whole_; }
  uint8_t step_to() const { return section_; }

  PrefixTree::Shape tree_shape() const;

 private:
  // Index of a level's format in the arena. row_pages: of a compressed section, as a mean over
  // rows; 0: blocks are as kv_store wrote them.
  using Level = KvSectionBlock;

  const KvArenaShape& shape_;
  std::vector<Level> levels_;
  std::array<uint8_t, PrefixTree::kMaxLevels> below_;
  uint8_t whole_ = kNone;
  uint8_t section_ = kNone;
};

// Returns: blocks of the longest path, short ones included.
int32_t most_blocks_of_path(const KvArenaShape& shape);

}  // namespace tessera
