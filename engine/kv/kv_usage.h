#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv/kv_format.h"

namespace tessera {

// Memory and precision of a sequence's keys and values, over all layers and heads.
struct KvUsage {
  int64_t bytes = 0;      // allocated: pages, residual buffers, page tables, token scores
  int64_t f16_bytes = 0;  // of the keys and values of all its tokens in f16, without overhead
  // Tokens by tier, as a mean over layers and KV heads. The open group counts as high.
  double high = 0;
  double low = 0;
  double dropped = 0;
  // Share of its policy's budget that memory pressure has left; 1: it was never tightened.
  double budget_share = 1;
  // [layers * kv_heads], tokens not dropped; empty if the policy is not lossy.
  std::vector<int32_t> kept{};
};

// Pages in use with tokens of one format.
struct KvFormatPages {
  KvFormat format;
  int64_t exclusive = 0;  // held by one running sequence alone
  int64_t shared = 0;     // held by several running sequences or by the prefix cache
};

}  // namespace tessera
