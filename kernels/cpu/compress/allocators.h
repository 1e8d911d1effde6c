#pragma once

#include <span>

#include "kernels/device/stream.h"
#include "kernels/kv/kv_pool.h"
#include "kernels/kv/row_budget.h"
#include "kernels/kv/token_row.h"

namespace tessera {

struct AllocatorInput {
  const KvPool& pool;
  const KvCompression& sequence;
  const Significance& significance;
  int32_t row_budget = 0;  // mean tokens of a row, of all stored tokens
  // Scratch, [threads of the stream, tokens of the rows of one layer].
  std::span<TokenKey> keys;
  // Scratch, [2, rows, entries of a row's page table], for the allocator `pages`.
  std::span<TokenKey> page_keys;
  std::span<int32_t> budgets;  // [layers * kv_heads] tokens; output
  Stream stream;

  // Returns: row of the first layer and KV head. Rows of a sequence are adjacent: layer by layer,
  // head by head.
  int64_t first_row() const { return pool.pages.row_index(sequence.slot, 0, 0); }
};

// Divides the budget by the policy's allocator (kernels/kv/kv_allocators.h).
void allocate(const AllocatorInput& input);

// The allocator `pages`.
void allocate_pages(const AllocatorInput& input);

}  // namespace tessera
