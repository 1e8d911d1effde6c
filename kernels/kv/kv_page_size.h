#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv/kv_page.h"

namespace tessera {

// Format that pages will have, and its use.
struct KvFormatUse {
  KvFormat format;
  bool whole_groups = true;       // tokens come in whole groups; false: a policy leaves any number
  bool in_prefix_blocks = false;  // prefix blocks have this format (kernels/kv/kv_pool.h)
  int32_t max_page_tokens = 4 * kKvGroup;  // more would only make the last page emptier
};

// Returns: expected share of wasted page bytes for a sequence of up to 2048 tokens. It counts slack
// in each page, the unfilled part of the last page, and table entries.
double expected_waste(const KvPageLayout& layout, bool whole_groups);

// Returns: tokens of a prefix block: the smallest run that is a whole number of groups, and of
// pages in each of `layouts`.
int32_t prefix_block_tokens(std::span<const KvPageLayout> layouts);

// Returns: the page size in bytes, a multiple of KvPageLayout::kByteMultiple, with the least sum of
// expected_waste over all these formats. A page holds at least a tile of each. It holds no more
// than max_page_tokens, unless tiles of other formats do not fit a smaller page.
// Tokens behind a prompt's last prefix block are computed again. Their expected number, less that
// behind its last group, therefore counts as waste of the prefix block formats.
// Requires: at least one format.
int64_t best_page_bytes(std::span<const KvFormatUse> uses, int32_t head_dim);

}  // namespace tessera
