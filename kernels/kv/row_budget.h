#pragma once

#include <cstdint>

#include "kernels/kv/kv_compression.h"
#include "kernels/kv/kv_pool.h"

namespace tessera {

// Pages by which a budget in bytes becomes a number of tokens.
struct BudgetPages {
  int64_t rows = 0;  // of a slot: layers x KV heads
  int64_t page_bytes = 0;
  int32_t high_capacity = 0;  // tokens of a page, by tier
  int32_t low_capacity = 0;
};

// Returns: mean budget of a row in tokens, from the policy's amount at the current length. A budget
// in bytes counts whole pages, of both tiers if there are two.
// Requires: the policy has a budget.
int32_t row_budget(const BudgetPages& pages, const KvCompression& sequence);
int32_t row_budget(const KvPool& pool, const KvCompression& sequence);

// Returns: the budget of a row in tokens, by an allocator that does not compare rows. mean: the
// mean budget of a row. profile: the row's, with the allocator `retrieval`.
constexpr int32_t budget_of_row(const KvCompression& sequence, int32_t mean, HeadProfile profile) {
  const bool retrieves = sequence.policy.allocates(KvAllocator::retrieval) &&
                         profile.place < sequence.policy.budget().retrieval_share;
  return retrieves ? sequence.tokens : mean;
}

}  // namespace tessera
