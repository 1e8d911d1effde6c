#pragma once

#include <type_traits>

#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/simt/block.h"
#include "kernels/matrix/e4m3.h"

namespace tessera::cuda {

// Writes rows of activations from kernels. All of them round by the same code, so a row that a norm
// rounds has the bits of one that a product rounds.

// Writes x, rounded to the format. Of fp8: x is divided by the row's scale.
template <WeightFormat kFormat>
TESSERA_DEVICE void put_element(const ActivationRows& out, int64_t place, float x) {
  if constexpr (kFormat == WeightFormat::f32) {
    static_cast<float*>(out.rows)[place] = x;
  } else if constexpr (kFormat == WeightFormat::bf16) {
    static_cast<bf16*>(out.rows)[place] = to_bf16(x);
  } else if constexpr (kFormat == WeightFormat::f16) {
    const float clamped = x > kLargestF16 ? kLargestF16 : x < -kLargestF16 ? -kLargestF16 : x;
    static_cast<f16*>(out.rows)[place] = simt::as_f16(clamped);
  } else {
    static_cast<e4m3*>(out.rows)[place] = to_e4m3(x);
  }
}

// Columns of a thread: first, first + step, ... below end.
struct Columns {
  int64_t first;
  int64_t end;
  int64_t step;
};

// Writes value(column) to the thread's columns of row block_x(). Of fp8, it is called twice for
// each, because a row's scale precedes its codes.
// Requires: all threads of the block call it. Of fp8: they have all columns of the row. `memory`:
// shared memory.
template <WeightFormat kFormat, class Value>
TESSERA_DEVICE void put_columns(const ActivationRows& out, const Columns& own, const Value& value,
                                simt::OfWarps<int32_t>& memory) {
  const int64_t row = simt::block_x() * out.stride;
  if constexpr (kFormat == WeightFormat::fp8) {
    // Magnitudes compare like their bits, and NaN is above all others. A NaN therefore reaches the
    // scale and every output.
    int32_t largest = 0;
    for (int64_t i = own.first; i < own.end; i += own.step) {
      const auto bits = static_cast<int32_t>(std::bit_cast<uint32_t>(value(i)) & 0x7fffffffu);
      largest = bits > largest ? bits : largest;
    }
    const float magnitude = std::bit_cast<float>(simt::block_max(largest, memory));
    const bool vanishes = magnitude < 1e-30f;  // its inverse might not be finite
    const float inverse = vanishes ? 0.0f : kLargestE4m3 / magnitude;
    for (int64_t i = own.first; i < own.end; i += own.step) {
      put_element<kFormat>(out, row + i, value(i) * inverse);
    }
    if (simt::thread() == 0) {
      out.scales[simt::block_x()] = vanishes ? 0.0f : magnitude / kLargestE4m3;
    }
  } else {
    for (int64_t i = own.first; i < own.end; i += own.step) {
      put_element<kFormat>(out, row + i, value(i));
    }
  }
}

// Calls call(constant) with the format as a std::integral_constant.
template <class Call>
void as_constant(WeightFormat format, const Call& call) {
  switch (format) {
    case WeightFormat::f32:
      return call(std::integral_constant<WeightFormat, WeightFormat::f32>());
    case WeightFormat::bf16:
      return call(std::integral_constant<WeightFormat, WeightFormat::bf16>());
    case WeightFormat::f16:
      return call(std::integral_constant<WeightFormat, WeightFormat::f16>());
    default:
      TESSERA_CHECK(format == WeightFormat::fp8, "activations of a format without products");
      return call(std::integral_constant<WeightFormat, WeightFormat::fp8>());
  }
}

}  // namespace tessera::cuda
