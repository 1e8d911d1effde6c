#include "kernels/kv/kv_page_size.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace tessera {
namespace {

constexpr int32_t kExpectedTokens = 2048;
// Bytes per page of a table entry, an owner count and a free list entry.
constexpr double kEntryBytes = 2 * sizeof(int32_t) + sizeof(uint16_t);
constexpr double kTooManyTokens = 1e6;  // waste of a page above max_page_tokens

// Returns: average number of tokens that a tier's last page could still hold, per stored token.
double unfilled(int32_t capacity, bool whole_groups) {
  if (!whole_groups) {
    return capacity / 2.0 / kExpectedTokens;
  }
  double unused = 0;
  double used = 0;
  for (int32_t tokens = kKvGroup; tokens <= kExpectedTokens; tokens += kKvGroup) {
    unused += static_cast<double>(round_up(tokens, capacity) - tokens);
    used += tokens;
  }
  return unused / used;
}

}  // namespace

double expected_waste(const KvPageLayout& layout, bool whole_groups) {
  const double page_bytes = static_cast<double>(layout.page_bytes);
  const double used = static_cast<double>(layout.used_bytes());
  return 1 - used / page_bytes + unfilled(layout.capacity, whole_groups) + kEntryBytes / page_bytes;
}

int32_t prefix_block_tokens(std::span<const KvPageLayout> layouts) {
  int32_t tokens = kKvGroup;
  for (const KvPageLayout& layout : layouts) {
    tokens = std::lcm(tokens, layout.capacity);
  }
  return tokens;
}

int64_t best_page_bytes(std::span<const KvFormatUse> uses, int32_t head_dim) {
  TESSERA_CHECK(!uses.empty(), "pages of no format");
  constexpr int64_t kStep = KvPageLayout::kByteMultiple;
  int64_t min = kStep;
  int64_t max = kStep;
  for (const KvFormatUse& use : uses) {
    min = std::max(min, KvPageLayout::make(use.format, head_dim, 1).page_bytes);
    max = std::max(max, KvPageLayout::make(use.format, head_dim, use.max_page_tokens).page_bytes);
  }
  int64_t best = min;
  double best_waste = 1e9;
  for (int64_t page_bytes = min; page_bytes <= max; page_bytes += kStep) {
    int32_t block_tokens = kKvGroup;
    double waste = 0;
    for (const KvFormatUse& use : uses) {
      const KvPageLayout layout = KvPageLayout::fit(use.format, head_dim, page_bytes);
      waste += expected_waste(layout, use.whole_groups);
      waste += layout.capacity > use.max_page_tokens ? kTooManyTokens : 0;
      block_tokens = use.in_prefix_blocks ? std::lcm(block_tokens, layout.capacity) : block_tokens;
    }
    waste += (block_tokens - kKvGroup) / 2.0 / kExpectedTokens;
    if (waste < best_waste) {
      best = page_bytes;
      best_waste = waste;
    }
  }
  return best;
}

}  // namespace tessera
