#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/view.h"

namespace tessera {

// Format of a weight matrix in a backend. Checkpoints are converted once, at load.
//   f32   exact; the oracle
//   bf16  activations are rounded to bf16 too, sums are f32
//   f16   activations are rounded to f16 too, those beyond 65504 to 65504; sums are f32
//   int8  symmetric, a scale for each output and block of 32 inputs; activations symmetric int8, a
//         scale for each token and block
//   int4  codes from a minimum on, a scale and a minimum for each output and block of 32 inputs;
//         activations as int8
//   fp8   E4M3 (kernels/e4m3.h), one scale per output row; activations E4M3, one scale per token;
//         sums are f32
enum class WeightFormat : uint8_t { f32, bf16, f16, int8, int4, fp8 };

inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::f32,  WeightFormat::bf16,
                                                  WeightFormat::f16,  WeightFormat::int8,
                                                  WeightFormat::int4, WeightFormat::fp8};

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

// How a format stores the weights of an output.
//   scale only         weight = scale * code, code symmetric around 0
//   scale and minimum  weight = scale * code + minimum, code from 0 on
struct WeightEncoding {
  enum class Scale : uint8_t { none, f16, f32 };

  int64_t bits = 0;           // of a weight or its code
  int64_t block = 0;          // inputs that share a scale; 0: all of them
  Scale scale = Scale::none;  // type of scale and minimum
  bool minimum = false;

  constexpr int64_t blocks(int64_t cols) const { return block == 0 ? 1 : div_ceil(cols, block); }
  // Returns: bytes of one output's scale and minimum, for one block.
  constexpr int64_t scale_bytes() const {
    const int64_t one = scale == Scale::none ? 0 : scale == Scale::f16 ? 2 : 4;
    return minimum ? 2 * one : one;
  }
  // Returns: bytes of one output's weights. The last block is stored whole.
  constexpr int64_t row_bytes(int64_t cols) const {
    const int64_t stored = block == 0 ? cols : blocks(cols) * block;
    return stored * bits / 8 + blocks(cols) * scale_bytes();
  }
};

// Blocks of integers bound the reach of an outlier among the inputs. Activations are cut into the
// blocks of their weights.
constexpr WeightEncoding encoding(WeightFormat format) {
  using Scale = WeightEncoding::Scale;
  switch (format) {
    case WeightFormat::f32:
      return {.bits = 32};
    case WeightFormat::bf16:
    case WeightFormat::f16:
      return {.bits = 16};
    case WeightFormat::int8:
      return {.bits = 8, .block = 32, .scale = Scale::f16};
    case WeightFormat::int4:
      return {.bits = 4, .block = 32, .scale = Scale::f16, .minimum = true};
    case WeightFormat::fp8:
      return {.bits = 8, .scale = Scale::f32};
  }
  return {};
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
