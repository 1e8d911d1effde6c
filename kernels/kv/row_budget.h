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

// Returns: mean budget of a row in tokens, from the policy's keep_share, keep_tokens or keep_bytes
// at the current length. A budget in bytes counts whole pages, of both tiers if there are two.
int32_t row_budget(const BudgetPages& pages, const KvCompression& sequence);
int32_t row_budget(const KvPool& pool, const KvCompression& sequence);

// Sizes that an allocator divides a budget by.
struct AllocatorShape {
  const KvPolicy& policy;
  int32_t layers;
  int32_t heads;       // KV heads
  int32_t tokens;      // stored tokens
  int32_t row_budget;  // mean tokens of a row
};

// Returns: the budget of a row in tokens.
template <class Allocator>
constexpr int32_t budget_of_row(const AllocatorShape& shape, const AllocatorRow& row) {
  const double budget = Allocator::budget(shape, row);
  return budget <= 0 ? 0 : budget < shape.tokens ? static_cast<int32_t>(budget) : shape.tokens;
}

}  // namespace tessera
