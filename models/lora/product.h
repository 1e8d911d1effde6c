#pragma once

#include <cstdint>

#include "kernels/ops/low_rank.h"

namespace tessera {

// Largest rank of one matrix of an adapter (LoRA, arXiv 2106.09685), and of the parts of a product
// together.
inline constexpr int32_t kMaxLoraRank = 256;
inline constexpr int32_t kMaxStackedRank = LowRankProduct::kMaxParts * kMaxLoraRank;

// The products of a layer that an adapter can change. B has its factor `scale` already.
struct LoraLayer {
  LowRankProduct qkv;
  LowRankProduct attention_out;
  LowRankProduct gate_up;
  LowRankProduct down;
};

}  // namespace tessera
