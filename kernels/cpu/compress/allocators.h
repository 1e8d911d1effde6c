#pragma once

#include <span>

#include "kernels/kv/kv_pool.h"
#include "kernels/kv/row_budget.h"
#include "kernels/kv/token_row.h"
#include "kernels/ops/stream.h"

namespace tessera {

// Allocators divide a budget of tokens over all rows (layers x KV heads) of a sequence. There is
// one function for each KvAllocator. Budget that a row cannot use is not given to other rows,
// except by allocators that use scores. The rule decides which tokens fill a row's budget
// (rules.h).
struct AllocatorInput {
  const KvPool& pool;
  const KvCompression& sequence;
  const Significance& significance;
  int32_t row_budget = 0;  // mean tokens of a row, of all stored tokens
  // Scratch, [threads of the stream, tokens of the rows of one layer].
  std::span<TokenKey> keys;
  // Scratch, [2, rows, entries of a row's page table], for allocators that rank pages.
  std::span<TokenKey> page_keys;
  std::span<int32_t> budgets;  // [layers * kv_heads] tokens; output
  Stream stream;
};

void allocate_uniform(const AllocatorInput& input);

// PyramidKV: the budget falls linearly over the layers, from 2 mean - last in the first layer to
// last = mean / steepness. The first layer gets at most all tokens. The slope of the paper rests on
// an offline profile of both ends.
void allocate_pyramid(const AllocatorInput& input);

// Ada-KV: the tokens with the highest scores over all heads of a layer share the layer's budget. A
// head's budget is head_floor of the uniform budget plus 1 - head_floor of its protected and
// winning tokens.
void allocate_heads(const AllocatorInput& input);

// KV-Compress, section 4.2.2: evicts whole pages over all rows together, until the remaining pages
// fit the budget. The next page of a row holds its worst tokens, as many as free its last page. The
// page whose best token is the worst is evicted first.
void allocate_pages(const AllocatorInput& input);

void allocate(const AllocatorInput& input);

}  // namespace tessera
