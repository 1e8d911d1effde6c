#pragma once

#include <cstdint>

#include "engine/kv/kv_accounting.h"
#include "engine/kv/kv_budget.h"
#include "engine/kv/swapped_kv.h"

namespace tessera {

// Numbers from which the scheduler plans a step. Pure: nothing here changes the cache. Uses the
// least favourable total of all ranks, so that all ranks plan the same step.
class KvPlanning {
 public:
  // prefixes: null without a prefix cache. Arguments outlive this.
  KvPlanning(const KvPolicy& default_policy, const KvArenaShape& shape, const SlotTable& slots,
             const KvAccounting& accounting, const PrefixCache* prefixes);

  KvBudget budget() const;
  // Page demand of a slot, of a sequence without one, of a swapped-out one.
  KvDemand demand(const KvSlot& slot) const { return demand(slots_.at(slot)); }
  KvDemand demand(const KvPolicy& policy, int32_t prompt_tokens) const;
  KvDemand demand(const SwappedKv& swapped) const;
  // Returns: pages of a row that a compressed section keeps, as a mean over rows; 0 if the policy
  // does not replay.
  int32_t section_pages(const KvPolicy& policy) const;
  // Returns: lower bound over ranks of the pages that releasing the slot frees, if a sample that
  // holds its first `forked` tokens stays. Pages of the prefix cache are not counted.
  int64_t own_pages(const KvSlot& slot, int32_t forked) const;
  // Returns: the pages that tightening the slot frees. Pages of the prefix cache are not counted.
  KvTightening tightening(const KvSlot& slot) const;
  // Tokens of one sequence in the default preset's high tier that fit into all pages. If all layers
  // have windows, those of sequences of the longest context.
  int64_t token_capacity() const;

 private:
  friend class KvCache;
  KvDemand demand(const SlotState& slot) const;
  int32_t page_tokens(const KvPolicy& policy) const;

  const KvPolicy default_policy_;
  const KvArenaShape& shape_;
  const SlotTable& slots_;
  const KvAccounting& accounting_;
  const PrefixCache* const prefixes_;
};

}  // namespace tessera
