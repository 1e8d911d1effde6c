#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv/kv_page.h"
#include "kernels/view.h"

namespace tessera {

// Bounds of a page's keys: for each channel a number that no key of the page exceeds, and one that
// none is below. The largest product of a query with a key of the page is then at most the sum of
// the larger products with these two: "Quest: Query-Aware Sparsity for Efficient Long-Context LLM
// Inference" (2024), section 3. Attention reads the pages with the largest such sums.
//
// They are the last bytes of a page in an arena with KvArenaShape::key_bounds, behind the layout of
// the page's format. Every op that copies a page copies them. kv_fork writes them anew for a partly
// filled page, because the copy may have fewer tokens.
//
//   [ codes of the upper bounds (head_dim) | codes of the lower bounds (head_dim) | slack ]
//
// A bound is zero + step * code, rounded outward. The lowest bits of the first 32 codes are those
// of two bfloat16: zero, then step, the lowest bit of each first. A code that would need the other
// lowest bit is one further outward, so codes are used as they are.
constexpr int64_t key_bound_bytes(int32_t head_dim) {
  return round_up(2 * head_dim, KvPageLayout::kByteMultiple);
}

// Smallest number of tiles that are read where tiles are selected: the ends of two tiers.
inline constexpr int32_t kMinReadTiles = 4;

// Smallest head_dim with key bounds: 32 codes.
inline constexpr int32_t kMinBoundedHeadDim = 16;

// Returns: true if pages of that layout have key bounds in the arena.
constexpr bool has_key_bounds(const KvPagesView& pages, const KvPageLayout& layout) {
  return layout.page_bytes < pages.page_bytes;
}

// Requires: has_key_bounds().
constexpr std::byte* key_bounds(const KvPagesView& pages, std::byte* page) {
  return page + pages.page_bytes - key_bound_bytes(pages.head_dim);
}

}  // namespace tessera
