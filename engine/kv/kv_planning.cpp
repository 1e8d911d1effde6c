#include "engine/kv/kv_planning.h"

#include <algorithm>

#include "engine/kv/kv_shape.h"
#include "engine/kv/kv_tightening.h"

namespace tessera {

KvPlanning::KvPlanning(const KvPolicy& default_policy, const KvArenaShape& shape,
                       const SlotTable& slots, const KvAccounting& accounting,
                       const PrefixCache* prefixes)
    : default_policy_(default_policy),
      shape_(shape),
      slots_(slots),
      accounting_(accounting),
      prefixes_(prefixes) {}

KvBudget KvPlanning::budget() const {
  return {accounting_.available_pages(), static_cast<int32_t>(shape_.slot_rows()),
          page_tokens(default_policy_)};
}

int32_t KvPlanning::page_tokens(const KvPolicy& policy) const {
  return shape_.layout(tiers_of(policy, shape_).high).capacity;
}

KvDemand KvPlanning::demand(const KvPolicy& policy, int32_t prompt_tokens) const {
  KvDemand demand{.heads = static_cast<int32_t>(shape_.whole_rows()),
                  .page_tokens = page_tokens(policy),
                  .compresses = policy.has_low_tier(),
                  .prompt_tokens = prompt_tokens,
                  .windows = KvWindows::of(shape_)};
  if (policy.replays()) {
    const int32_t last = shape_.context - policy.section;  // a replay needs positions behind it
    demand.sections = {.tokens = policy.section,
                       .end = policy.compress_generated ? last : std::min(last, prompt_tokens),
                       .pages = shape_.whole_rows() * section_pages(policy)};
  }
  return demand;
}

int32_t KvPlanning::section_pages(const KvPolicy& policy) const {
  return tessera::section_pages(policy, page_tokens(policy));
}

KvDemand KvPlanning::demand(const SlotState& slot) const {
  KvDemand demand = this->demand(slot.policy, slot.prompt_tokens);
  demand.low_tokens = slot.low_tokens;
  demand.uneven = slot.compressed;
  demand.sections = slot.sections;
  demand.sections.replayed = slot.replayed();
  demand.handed_over = slot.handed_over;
  demand.compresses =
      demand.compresses && (!slot.compressed || slot.handed_over || slot.policy.compress_generated);
  return demand;
}

KvDemand KvPlanning::demand(const SwappedKv& swapped) const {
  KvDemand demand = this->demand(swapped.slot_.policy, swapped.slot_.prompt_tokens);
  demand.uneven = true;
  demand.swap_in_pages = swapped.pages();
  return demand;
}

int64_t KvPlanning::own_pages(const KvSlot& slot, int32_t forked) const {
  const SlotState& of = slots_.at(slot);
  const int64_t forked_pages = forked > 0 ? demand(of).full_pages(forked) + of.low_pages : 0;
  const int64_t own = of.pages_at_least() - forked_pages;
  if (prefixes_ == nullptr) {
    return own;
  }
  const int64_t low = forked > 0 ? 0 : prefixes_->paths().cached_low_pages(slot.index());
  return own - prefixes_->paths().cached_high_pages(slot.index(), forked) -
         prefixes_->paths().cached_windowed_pages(slot.index()) - low;
}

KvTightening KvPlanning::tightening(const KvSlot& slot) const {
  const SlotState& state = slots_.at(slot);
  KvTightening result{.steps = state.tightenings};
  if (!state.compressed || state.floor >= 1) {
    return result;
  }
  SlotState of = state;
  if (of.tightenings == 0) {
    of.stored_share = stored_share(of, shape_, accounting_.rank_totals().ranks());
  }
  const int64_t own = own_pages(slot, 0);
  const int64_t shared =
      prefixes_ == nullptr ? 0 : prefixes_->paths().cached_high_pages(slot.index(), 0);
  const auto shared_tokens =
      static_cast<int32_t>(shared / shape_.slot_rows() * page_tokens(of.policy));
  int64_t freed = 0;
  for (int32_t i = 0; i < kMaxTightenings; ++i) {
    const int32_t steps = of.tightenings + i + 1;
    if (budget_share(of.floor, steps) < budget_share(of.floor, steps - 1)) {
      const KvPolicy policy = tightened_policy(of, steps, shape_);
      const int64_t after =
          pages_after(compression_of(slot.index(), of, policy), shared_tokens, shape_) - shared;
      freed = std::max(freed, own - after);
      result.pages_needed = policy.has_low_tier() ? shape_.slot_rows() : 0;
    }
    result.freed[static_cast<size_t>(i)] = freed;
  }
  return result;
}

int64_t KvPlanning::token_capacity() const {
  const int32_t tokens = page_tokens(default_policy_);
  const KvWindows windows = KvWindows::of(shape_);
  if (shape_.whole_rows() == 0) {  // sequences of whole contexts, as many as fit
    const int64_t of_context = context_pages(shape_);
    return accounting_.pages_total() / of_context * shape_.context;
  }
  return (accounting_.pages_total() - windows.pages_for(shape_.context, tokens)) /
         shape_.whole_rows() * tokens;
}

}  // namespace tessera
