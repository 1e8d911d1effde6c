#pragma once

#include <span>

#include "kernels/cpu/compress/token_row.h"
#include "kernels/kv_pool.h"

namespace tessera {

// A budget in tokens, over all rows (layers x KV heads) of a sequence, spread over them: one
// function for each KvAllocator. What a row cannot use is not given to others, except where scores
// decide. Which tokens fill a row's budget is the rule's affair (rules.h).
struct AllocatorInput {
  const KvPool& pool;
  const KvCompression& sequence;
  const Significance& significance;
  int32_t row_budget = 0;  // tokens for each row on the average, of all that are stored
  // For each of the stream's threads, as many keys as the rows of one layer may have tokens.
  std::span<TokenKey> keys;
  // Twice as many as the sequence's rows have table entries: for allocators that rank pages.
  std::span<TokenKey> page_keys;
  std::span<int32_t> budgets;  // [layers * kv_heads], what an allocator fills in
  Stream stream;
};

// The mean budget of a row: what the policy's keep_share, keep_tokens or keep_bytes comes to now. A
// budget in bytes is one in whole pages, of both tiers where there are two.
int32_t row_budget(const KvPool& pool, const KvCompression& sequence);

void allocate_uniform(const AllocatorInput& input);

// PyramidKV: from 2 mean - last in the first layer, but at most all tokens, to
// last = mean / steepness, linearly. Its own slope rests on an offline profile of the ends.
void allocate_pyramid(const AllocatorInput& input);

// Ada-KV: the tokens with the highest scores of a layer's heads share the layer's budget; of what a
// head wins, 1 - head_floor counts, the rest of its budget is a uniform floor.
void allocate_heads(const AllocatorInput& input);

// KV-Compress, section 4.2.2: of all rows together, whole pages are evicted until as many are left
// as the budget has. A row's next page to go holds its worst tokens, as many as free its last page;
// the page whose best token is the worst goes first.
void allocate_pages(const AllocatorInput& input);

void allocate(const AllocatorInput& input);

}  // namespace tessera
