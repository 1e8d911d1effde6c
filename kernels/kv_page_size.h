#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_page.h"

namespace tessera {

// A format that pages will have, and how tokens come into it.
struct KvFormatUse {
  KvFormat format;
  bool whole_groups = true;       // only whole groups; false: a policy leaves any number of tokens
  bool in_prefix_blocks = false;  // sequences share runs of it (kernels/kv_pool.h)
};

// The share of its pages' bytes that a sequence of up to 2048 tokens is expected to waste with this
// layout: slack in each page, the unfilled part of the last, and what the tables spend on a page.
double expected_waste(const KvPageLayout& layout, bool whole_groups);

// Tokens of the smallest run that is a whole number of groups and of pages of each of `layouts`.
int32_t prefix_block_tokens(std::span<const KvPageLayout> layouts);

// The one size, a multiple of KvPageLayout::kByteMultiple, for pages of all these formats with the
// least sum of expected_waste; each holds a tile at least. Of the formats in units, what a prompt
// is expected to have behind its last unit, beyond what is behind its last group, is waste too,
// because it is computed again. Requires: a format.
int64_t best_page_bytes(std::span<const KvFormatUse> uses, int32_t head_dim);

}  // namespace tessera
