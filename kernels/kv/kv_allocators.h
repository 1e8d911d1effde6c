#pragma once

#include <cstdint>

namespace tessera {

// An allocator divides a budget of tokens over all rows (layers x KV heads) of a sequence. The rule
// decides which tokens fill a row's budget (kv_rules.h). Budget that a row cannot use is not given
// to other rows. The names are the values of the policy field `allocator`. Values go between ranks.
enum class KvAllocator : uint8_t {
  uniform,  // the same for every row
  // Whole pages are evicted over all rows together, until the remaining pages fit the budget. The
  // next page of a row holds its worst tokens, as many as free
  // its last page. The page whose best token is the worst is evicted first. The ranking needs all
  // rows at once, so each backend has its own code.
  pages,
  // KeepBudget::retrieval_share of all rows keep everything, and each other row keeps the budget.
  // Those that lose the most without their tokens retrieve, by the profile of the model.
  retrieval,
};

}  // namespace tessera
