#pragma once

#include <cstdint>

#include "kernels/kv/allocators/reads.h"

namespace tessera {

// DuoAttention (arXiv 2410.10819) and RazorAttention (arXiv 2407.15891): heads that retrieve from
// the whole context keep all tokens, and the other heads keep the budget. Here the rows that lose
// the most without their tokens retrieve, `retrieval_share` of all rows. DuoAttention trains a gate
// for each head, RazorAttention reads the attention to repeated tokens.
struct RetrievalAllocator {
  static constexpr AllocatorReads kReads = AllocatorReads::profile;
  template <class Shape>
  static constexpr double budget(const Shape& shape, const AllocatorRow& row) {
    return row.profile.place < shape.policy.retrieval_share ? shape.tokens : shape.row_budget;
  }
};

}  // namespace tessera
