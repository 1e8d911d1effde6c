#include "engine/kv/kv_tightening.h"

#include <algorithm>
#include <cmath>

#include "kernels/kv/row_budget.h"

namespace tessera {
namespace {

constexpr float kShareOfStep = 0.75f;

BudgetPages pages_of(const KvTiers& tiers, const KvArenaShape& shape) {
  return {.rows = shape.slot_rows(),
          .page_bytes = shape.page_bytes,
          .high_capacity = shape.layout(tiers.high).capacity,
          .low_capacity = shape.layout(tiers.low).capacity};
}

// A policy that leaves generated tokens alone: its budget is one of the prompt, and the generated
// tokens come on top of it.
void keep_generated(KvPolicy& policy, const SlotState& slot, const KvArenaShape& shape) {
  const int32_t generated = slot.tokens - slot.prompt_tokens;
  policy.recent += slot.tokens / kKvGroup - slot.prompt_tokens / kKvGroup;
  KvAmount& amount = policy.budget().amount;
  if (amount.is_bytes()) {
    const BudgetPages pages = pages_of(slot.tiers, shape);
    amount =
        KvAmount::of_bytes(amount.bytes() + pages.rows * pages.page_bytes *
                                                div_ceil(int64_t{generated}, pages.high_capacity));
    return;
  }
  const int32_t of_prompt =
      amount.is_tokens() ? amount.tokens()
                         : static_cast<int32_t>(std::ceil(double{amount.share()} *
                                                          static_cast<double>(slot.prompt_tokens)));
  amount = KvAmount::of_tokens(of_prompt + generated);
}

KvAmount scaled(KvAmount amount, float share) {
  if (amount.is_share()) {
    return KvAmount::of_share(amount.share() * share);
  }
  if (amount.is_tokens()) {
    return KvAmount::of_tokens(
        static_cast<int32_t>(std::ceil(share * static_cast<float>(amount.tokens()))));
  }
  return KvAmount::of_bytes(
      static_cast<int64_t>(double{share} * static_cast<double>(amount.bytes())));
}

// Upper bounds of the pages of a slot after a compression by the rule `budget`. `open` tokens of
// the budget are in the residual buffer.
class PagesAfter {
 public:
  // fixed: closed tokens of each row that stay, all of them in the high tier.
  PagesAfter(const KvCompression& compression, int64_t fixed, const KvArenaShape& shape)
      : compression_(compression),
        policy_(compression.policy),
        shape_(shape),
        pages_(pages_of(compression.tiers, shape)),
        open_(compression.tokens % kKvGroup),
        fixed_(fixed),
        mean_(row_budget(pages_, compression)) {}

  int64_t bound() const {
    switch (policy_.budget().allocator) {
      case KvAllocator::uniform:
        return pages_.rows * pages_of_row(mean_);
      case KvAllocator::retrieval:
        return by_profile();
      case KvAllocator::pages:
        // Whole pages go, until the budget is met or no row has a page that it may lose.
        return pages_.rows * std::max(std::max<int64_t>(mean_ - open_, 0) / pages_.high_capacity,
                                      div_ceil(fixed_, int64_t{pages_.high_capacity}));
    }
    return 0;
  }

 private:
  int64_t closed() const { return compression_.tokens - open_; }
  bool two_tiers() const { return policy_.has_low_tier(); }

  // Closed tokens of the high tier of a row with this budget.
  int64_t high_of(int64_t budget) const {
    const int64_t high =
        std::llround(double{policy_.budget().high_share} * static_cast<double>(budget));
    return std::max(high - open_, fixed_);
  }

  // Pages of a row with this budget. With two tiers, both may end with a partly filled page.
  int64_t pages_of_row(int64_t budget) const {
    const int64_t kept = std::min(closed(), std::max(budget - open_, fixed_));
    const int64_t high = two_tiers() ? std::min(kept, high_of(budget)) : kept;
    return div_ceil(high, int64_t{pages_.high_capacity}) +
           div_ceil(kept - high, int64_t{pages_.low_capacity}) + (two_tiers() ? 1 : 0);
  }

  // Each row has the budget of its profile. Ranks plan alike, so the bound is that of the rank
  // whose rows keep the most.
  int64_t by_profile() const {
    int64_t most = 0;
    for (int32_t rank = 0; rank < shape_.profiled_ranks(); ++rank) {
      int64_t sum = 0;
      for (int64_t row = 0; row < pages_.rows; ++row) {
        sum += pages_of_row(budget_of_row(compression_, mean_, shape_.head_profile(rank, row)));
      }
      most = std::max(most, sum);
    }
    return most;
  }

  const KvCompression& compression_;
  const KvPolicy& policy_;
  const KvArenaShape& shape_;
  const BudgetPages pages_;
  const int64_t open_;
  const int64_t fixed_;
  const int32_t mean_;
};

}  // namespace

float budget_share(float floor, int32_t steps) {
  return std::max(floor, std::pow(kShareOfStep, static_cast<float>(steps)));
}

float stored_share(const SlotState& slot, const KvArenaShape& shape, int32_t ranks) {
  const BudgetPages pages = pages_of(slot.tiers, shape);
  const double closed = static_cast<double>(slot.all_high_pages) * pages.high_capacity +
                        static_cast<double>(slot.all_low_pages) * pages.low_capacity;
  const double stored = closed / static_cast<double>(pages.rows * ranks) + slot.tokens % kKvGroup;
  return static_cast<float>(std::min(1.0, stored / slot.tokens));
}

KvPolicy tightened_policy(const SlotState& slot, int32_t steps, const KvArenaShape& shape) {
  KvPolicy policy = slot.policy;
  if (steps == 0) {
    return policy;
  }
  if (!policy.keep.is<KeepBudget>()) {
    policy.keep = KeepBudget{.amount = KvAmount::of_share(slot.stored_share), .high_share = 0};
  }
  const float share = budget_share(slot.floor, steps);
  policy.budget().retrieval_share *= share;
  policy.budget().amount = scaled(policy.budget().amount, share);
  if (!policy.compress_generated) {
    keep_generated(policy, slot, shape);
  }
  return policy;
}

KvCompression compression_of(int32_t slot, const SlotState& state, const KvPolicy& policy) {
  return {.slot = slot,
          .tiers = state.tiers,
          .policy = policy,
          .tokens = state.tokens,
          .prompt_tokens = state.prompt_tokens,
          .evaluated = state.evaluated,
          .pool_scores = !state.compressed};
}

int64_t pages_after(const KvCompression& compression, int32_t shared_tokens,
                    const KvArenaShape& shape) {
  const int64_t closed = compression.tokens / kKvGroup * kKvGroup;
  const int64_t fixed = std::min(closed, int64_t{shared_tokens} + compression.policy.sinks +
                                             closed - compression.evaluated_after());
  return PagesAfter(compression, fixed, shape).bound();
}

}  // namespace tessera
