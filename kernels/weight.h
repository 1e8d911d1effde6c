#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/view.h"

namespace tessera {

// Format of a weight matrix in a backend. Checkpoints are converted once, at load.
//   f32   exact; the oracle
//   bf16  activations are rounded to bf16 too, sums are f32
//   f16   activations are rounded to f16 too, those beyond 65504 to 65504; sums are f32
//   int8  symmetric, one scale per output row; activations symmetric int8, one scale per token
//   int4  symmetric, one scale per output row and group of kInt4Group inputs; activations as int8
//   fp8   E4M3 (kernels/e4m3.h), one scale per output row; activations E4M3, one scale per token;
//         sums are f32
enum class WeightFormat : uint8_t { f32, bf16, f16, int8, int4, fp8 };

inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::f32,  WeightFormat::bf16,
                                                  WeightFormat::f16,  WeightFormat::int8,
                                                  WeightFormat::int4, WeightFormat::fp8};

inline constexpr int64_t kInt4Group = 32;  // inputs that share one scale

constexpr std::string_view name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::f16:
      return "f16";
    case WeightFormat::int8:
      return "int8";
    case WeightFormat::int4:
      return "int4";
    case WeightFormat::fp8:
      return "fp8";
  }
  return "?";
}

// A weight in the layout of its backend. Written only by Backend::pack_weight and read only by
// Backend::linear. Does not own its memory.
struct PackedWeight {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;           // outputs
  int64_t cols = 0;           // inputs
  std::byte* data = nullptr;  // Backend::packed_weight_bytes(format, rows, cols) bytes
};

}  // namespace tessera
