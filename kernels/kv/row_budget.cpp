#include "kernels/kv/row_budget.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

// Returns: max tokens of a row, the open group included, whose closed tokens fit `pages` pages.
int32_t tokens_in(const BudgetPages& of, const KvCompression& sequence, int64_t pages) {
  const int32_t open = sequence.tokens % kKvGroup;
  const int32_t in_high_anyway =
      std::min(sequence.tokens, sequence.policy.sinks + sequence.policy.recent * kKvGroup + open);
  const auto fit = [&](int32_t tokens) {
    int64_t high = tokens;
    if (sequence.policy.has_low_tier()) {
      high = std::llround(double{sequence.policy.budget().high_share} * tokens);
      high = std::clamp<int64_t>(high, std::min(tokens, in_high_anyway), tokens);
    }
    return div_ceil(std::max<int64_t>(high - open, 0), of.high_capacity) +
               div_ceil(tokens - high, of.low_capacity) <=
           pages;
  };
  // Neither tier shrinks with more tokens, so a bisection finds the largest number that fits.
  int32_t most = open;
  for (int32_t above = sequence.tokens + 1; above - most > 1;) {
    const int32_t middle = most + (above - most) / 2;
    (fit(middle) ? most : above) = middle;
  }
  return most;
}

}  // namespace

int32_t row_budget(const BudgetPages& pages, const KvCompression& sequence) {
  const KvAmount amount = sequence.policy.budget().amount;
  if (amount.is_share()) {
    return static_cast<int32_t>(std::clamp(std::ceil(double{amount.share()} * sequence.tokens), 0.0,
                                           static_cast<double>(sequence.tokens)));
  }
  if (amount.is_tokens()) {
    return std::min(amount.tokens(), sequence.tokens);
  }
  return tokens_in(pages, sequence, amount.bytes() / (pages.rows * pages.page_bytes));
}

int32_t row_budget(const KvPool& pool, const KvCompression& sequence) {
  const KvPagesView& pages = pool.pages;
  return row_budget({.rows = int64_t{pages.layers} * pages.kv_heads,
                     .page_bytes = pages.page_bytes,
                     .high_capacity = pages.layouts[sequence.tiers.high].capacity,
                     .low_capacity = pages.layouts[sequence.tiers.low].capacity},
                    sequence);
}

}  // namespace tessera
