#include "engine/kv/prefix_levels.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {
namespace {

std::vector<KvSectionBlock> levels_of(const KvArenaShape& shape) {
  std::vector<KvSectionBlock> levels;
  for (size_t tier = 0; tier < shape.formats.size(); ++tier) {
    levels.push_back({static_cast<uint8_t>(tier), 0});
  }
  std::stable_sort(levels.begin(), levels.end(),
                   [&](const KvSectionBlock& a, const KvSectionBlock& b) {
                     return token_bytes(shape.formats[a.tier], shape.head_dim) >
                            token_bytes(shape.formats[b.tier], shape.head_dim);
                   });
  levels.insert(levels.end(), shape.section_blocks.begin(), shape.section_blocks.end());
  TESSERA_CHECK(levels.size() <= PrefixTree::kMaxLevels, "more kinds of prefix blocks than levels");
  return levels;
}

}  // namespace

int32_t most_blocks_of_path(const KvArenaShape& shape) {
  const int32_t short_blocks =
      shape.short_block_tokens > 0 ? shape.prefix_block_tokens / shape.short_block_tokens : 0;
  return shape.context / shape.prefix_block_tokens + 1 + short_blocks;
}

PrefixLevels::PrefixLevels(const KvArenaShape& shape, std::span<const uint8_t> ladder)
    : shape_(shape), levels_(levels_of(shape)) {
  const PrefixTree::Shape tree = tree_shape();
  below_.fill(kNone);
  for (uint8_t level = 0; level < size(); ++level) {
    for (uint8_t lower = level + 1; lower < size() && below_[level] == kNone; ++lower) {
      const bool on_ladder = !is_section(level) && !is_section(lower) &&
                             std::find(ladder.begin(), ladder.end(), tier(lower)) != ladder.end();
      if (on_ladder && tree.prefix_block_pages[lower] < tree.prefix_block_pages[level]) {
        below_[level] = lower;
      }
    }
  }
}

uint8_t PrefixLevels::of(KvFormat format, int32_t section_pages) const {
  for (uint8_t level = 0; level < size(); ++level) {
    if (shape_.formats[tier(level)] == format && levels_[level].row_pages == section_pages) {
      return level;
    }
  }
  TESSERA_CHECK(false, "a format that the cache does not serve");
  return 0;
}

uint8_t PrefixLevels::accepted_by(const KvPrompt& prompt) const {
  const uint8_t own = own_of(prompt);
  const uint8_t accept = is_section(own) ? own : std::max(own, of(prompt.accept));
  return prompt.accepts_sections && has_section_step() && own == whole_ ? std::max(accept, section_)
                                                                        : accept;
}

void PrefixLevels::add_section_step(KvFormat format, int32_t section_pages) {
  whole_ = of(format);
  section_ = of(format, section_pages);
}

PrefixTree::Shape PrefixLevels::tree_shape() const {
  PrefixTree::Shape tree{.blocks = shape_.prefix_blocks(),
                         .prefix_block_tokens = shape_.prefix_block_tokens};
  for (size_t level = 0; level < levels_.size(); ++level) {
    const Level& of = levels_[level];
    const int32_t capacity = shape_.layout(of.tier).capacity;
    const int32_t row_pages =
        of.row_pages > 0 ? of.row_pages : shape_.prefix_block_tokens / capacity;
    tree.prefix_block_pages[level] = shape_.whole_rows() * row_pages;
    tree.windows_pages[level] =
        shape_.windowed_rows() * shape_.windowed_block_pages(of.tier, shape_.prefix_block_tokens);
    if (of.row_pages == 0 && shape_.has_short_blocks(of.tier)) {
      tree.short_block_tokens = shape_.short_block_tokens;
      tree.short_block_pages[level] = shape_.whole_rows() * (shape_.short_block_tokens / capacity);
    }
  }
  return tree;
}

}  // namespace tessera
