#include "engine/kv/kv_planning.h"

#include "engine/kv/kv_shape.h"

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
  return {.heads = static_cast<int32_t>(shape_.slot_rows()),
          .page_tokens = page_tokens(policy),
          .compresses = policy.has_low_tier(),
          .prompt_tokens = prompt_tokens};
}

KvDemand KvPlanning::demand(const SlotState& slot) const {
  KvDemand demand = this->demand(slot.policy, slot.prompt_tokens);
  demand.low_tokens = slot.low_tokens;
  demand.uneven = slot.compressed;
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
  const int64_t low = forked > 0 ? 0 : prefixes_->cached_low_pages(slot.index());
  return own - prefixes_->cached_high_pages(slot.index(), forked) - low;
}

int64_t KvPlanning::token_capacity() const {
  return accounting_.pages_total() / shape_.slot_rows() * page_tokens(default_policy_);
}

}  // namespace tessera
