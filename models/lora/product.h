#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/check.h"
#include "kernels/weight.h"

namespace tessera {

// Largest rank of one matrix of an adapter (LoRA, arXiv 2106.09685), and of the parts of a product
// together.
inline constexpr int32_t kMaxLoraRank = 256;
inline constexpr int32_t kMaxLoraParts = StackedWeight::kMaxParts;
inline constexpr int32_t kMaxStackedRank = kMaxLoraParts * kMaxLoraRank;

// What an adapter adds to one product of a layer: scale * B (A x) for each matrix that it changes.
// The matrices of a product share their input, so all A are one weight.
struct LoraProduct {
  struct Part {
    PackedWeight up;           // [outputs, rank], B times the scale
    int64_t first_output = 0;  // of the layer's product
    int64_t first_rank = 0;    // of the outputs of `down`
  };

  PackedWeight down;  // [ranks, inputs], all A; no rows: the adapter leaves the product alone
  std::array<Part, kMaxLoraParts> parts;
  int32_t count = 0;

  void add(const Part& part) {
    TESSERA_CHECK(count < kMaxLoraParts, "an adapter of too many parts");
    parts[static_cast<size_t>(count++)] = part;
  }
  std::span<const Part> all() const { return std::span(parts).first(static_cast<size_t>(count)); }
};

// The products of a layer that an adapter can change.
struct LoraLayer {
  LoraProduct qkv;
  LoraProduct attention_out;
  LoraProduct gate_up;
  LoraProduct down;
};

}  // namespace tessera
