#pragma once

#include <span>

#include "kernels/backend.h"

namespace tessera::cuda {

// Rows that a kernel writes, in the format in which some weights are multiplied by them: numbers of
// f32, bf16 or f16; for fp8 E4M3 and a scale for each token. Device memory.
struct ActivationRows {
  void* rows = nullptr;     // [tokens, cols]
  int64_t stride = 0;       // elements
  float* scales = nullptr;  // [tokens], of fp8 alone
};

// The same for a product that reads them.
struct Activations {
  const void* rows = nullptr;
  int64_t stride = 0;
  const float* scales = nullptr;
};

// Returns: true if products round f32 activations to their weights' format.
constexpr bool rounds(WeightFormat format) {
  return format == WeightFormat::bf16 || format == WeightFormat::f16 || format == WeightFormat::fp8;
}

// Rounded activations are at the start of a product's scratch: scales, then rows.
inline constexpr int64_t kScratchAlign = 256;

// Returns: bytes of scratch up to scratch_behind_rows(), for any address of the scratch.
constexpr int64_t rounded_bytes(int64_t tokens, int64_t cols) {
  return kScratchAlign + round_up(tokens * 4, kScratchAlign) +
         round_up(tokens * cols * 2, kScratchAlign);
}
// Returns: place of rounded activations in the scratch of the products that read them.
ActivationRows rounded_rows(std::span<std::byte> scratch, int64_t tokens, int64_t cols);
// Returns: the rest of the scratch.
std::byte* scratch_behind_rows(std::span<std::byte> scratch, int64_t tokens, int64_t cols);

// Rounds activations by one launch with one block for each row. Values beyond the range of f16
// become its largest finite value. E4M3 is that of in / scale, such that a row's largest magnitude
// is 448: the CPU's bits.
// Requires: rounds(format).
void round_rows(WeightFormat format, MatrixView<const float> in, const ActivationRows& out,
                Stream stream);

// Returns: the activations of a product. If its weights need rounded ones and `scratch` does not
// have them yet (LinearArgs::rounded), they are rounded into `scratch`.
Activations activations_of(const LinearArgs& args, Stream stream);

// Adds bias[i] to column i of every row of `out`. `bias`: device memory.
void add_bias(MatrixView<float> out, const float* bias, Stream stream);

}  // namespace tessera::cuda
