#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/check.h"
#include "kernels/half.h"
#include "kernels/view.h"

namespace tessera {

// Format of a weight matrix in a backend. encoding() describes each of them as data.
//   f32   exact; the oracle
//   bf16  activations are rounded to bf16 too, sums are f32
//   f16   activations are rounded to f16 too, those beyond 65504 to 65504; sums are f32
//   fp8   E4M3 (kernels/e4m3.h), one scale per output row; activations E4M3, one scale per token;
//         sums are f32
//   int*  codes in blocks of inputs. Activations are symmetric int8 in the same blocks, a scale for
//         each token and block
enum class WeightFormat : uint8_t {
  f32,
  bf16,
  f16,
  int8,  // symmetric
  int4,  // from a minimum on
  fp8,
  int4_symmetric,  // from here on: only from a checkpoint with these codes
  int5_symmetric,
  int5,        // from a minimum on
  int4_super,  // from a minimum on, superblocks
  int5_super,
  int6_super  // symmetric, superblocks
};

inline constexpr int kWeightFormatCount = 12;

// Formats that any matrix can be converted to.
inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::f32,  WeightFormat::bf16,
                                                  WeightFormat::f16,  WeightFormat::int8,
                                                  WeightFormat::int4, WeightFormat::fp8};

// Formats of integers. All of them can be packed from codes (WeightCodes).
inline constexpr WeightFormat kCodedFormats[] = {
    WeightFormat::int8,           WeightFormat::int4,      WeightFormat::int4_symmetric,
    WeightFormat::int5_symmetric, WeightFormat::int5,      WeightFormat::int4_super,
    WeightFormat::int5_super,     WeightFormat::int6_super};

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
    case WeightFormat::int4_symmetric:
      return "int4_symmetric";
    case WeightFormat::int5_symmetric:
      return "int5_symmetric";
    case WeightFormat::int5:
      return "int5";
    case WeightFormat::int4_super:
      return "int4_super";
    case WeightFormat::int5_super:
      return "int5_super";
    case WeightFormat::int6_super:
      return "int6_super";
  }
  return "?";
}

// How a format stores the weights of an output.
//   symmetric     weight = scale * (code - offset)
//   with minimum  weight = scale * code + minimum
// Codes are from 0 on. With superblocks, scale and minimum of a block are each an integer factor of
// 8 bits times the superblock's.
struct WeightEncoding {
  enum class Scale : uint8_t { none, f16, f32 };

  int64_t bits = 0;           // of a weight or its code
  int64_t block = 0;          // inputs that share a scale; 0: all of them
  Scale scale = Scale::none;  // type of scale and minimum
  bool minimum = false;
  int32_t offset = 0;
  int64_t superblock = 0;  // inputs; 0: blocks have scales of their own

  constexpr bool is_coded() const { return block > 0; }
  constexpr int64_t blocks(int64_t cols) const { return block == 0 ? 1 : div_ceil(cols, block); }
  // Returns: inputs that share a scale of type `scale`. Integers only.
  constexpr int64_t scale_inputs() const { return superblock == 0 ? block : superblock; }
  // Returns: bytes of one output's scale and minimum, for one block or superblock.
  constexpr int64_t scale_bytes() const {
    const int64_t one = scale == Scale::none ? 0 : scale == Scale::f16 ? 2 : 4;
    return minimum ? 2 * one : one;
  }
  // Returns: bytes of one output's factors of scale and minimum, for one block.
  constexpr int64_t factor_bytes() const { return superblock == 0 ? 0 : minimum ? 2 : 1; }
  // Returns: bytes of one output's weights. The last block or superblock is stored whole.
  constexpr int64_t row_bytes(int64_t cols) const {
    if (block == 0) {
      return cols * bits / 8 + scale_bytes();
    }
    const int64_t scales = div_ceil(cols, scale_inputs());
    const int64_t stored = scales * scale_inputs();
    return stored * bits / 8 + stored / block * factor_bytes() + scales * scale_bytes();
  }
};

// Blocks of integers bound the reach of an outlier among the inputs. Activations are cut into the
// blocks of their weights.
constexpr WeightEncoding encoding(WeightFormat format) {
  constexpr WeightEncoding::Scale kF16 = WeightEncoding::Scale::f16;
  switch (format) {
    case WeightFormat::f32:
      return {.bits = 32};
    case WeightFormat::bf16:
    case WeightFormat::f16:
      return {.bits = 16};
    case WeightFormat::fp8:
      return {.bits = 8, .scale = WeightEncoding::Scale::f32};
    case WeightFormat::int8:
      return {.bits = 8, .block = 32, .scale = kF16, .offset = 128};
    case WeightFormat::int4_symmetric:
      return {.bits = 4, .block = 32, .scale = kF16, .offset = 8};
    case WeightFormat::int5_symmetric:
      return {.bits = 5, .block = 32, .scale = kF16, .offset = 16};
    case WeightFormat::int4:
      return {.bits = 4, .block = 32, .scale = kF16, .minimum = true};
    case WeightFormat::int5:
      return {.bits = 5, .block = 32, .scale = kF16, .minimum = true};
    case WeightFormat::int4_super:
      return {.bits = 4, .block = 32, .scale = kF16, .minimum = true, .superblock = 256};
    case WeightFormat::int5_super:
      return {.bits = 5, .block = 32, .scale = kF16, .minimum = true, .superblock = 256};
    case WeightFormat::int6_super:
      return {.bits = 6, .block = 16, .scale = kF16, .offset = 32, .superblock = 256};
  }
  return {};
}

// Rows of weights as integers, in a coded format (encoding()). Not owned.
// Requires: `cols` is a multiple of scale_inputs().
struct WeightCodes {
  WeightFormat format = WeightFormat::int8;
  MatrixView<const uint8_t> codes;           // [rows, cols]
  MatrixView<const int8_t> scale_factors;    // [rows, blocks] with superblocks
  MatrixView<const int8_t> minimum_factors;  // [rows, blocks] with superblocks and minimum
  MatrixView<const f16> scales;              // [rows, cols / scale_inputs]
  MatrixView<const f16> minimums;            // likewise, with minimum
};

// A weight in the layout of its backend. Written only by Backend::pack_weight and pack_codes, and
// read only by Backend::linear and embed. Does not own its memory.
struct PackedWeight {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;           // outputs
  int64_t cols = 0;           // inputs
  std::byte* data = nullptr;  // Backend::packed_weight_bytes(format, rows, cols) bytes
};

// The weight of one product: tensors stacked by rows. Neighbours of one format are one part.
struct StackedWeight {
  static constexpr int32_t kMaxParts = 3;  // query, key and value

  std::array<PackedWeight, kMaxParts> parts;  // not owned; rows follow each other
  int32_t count = 0;

  void add(const PackedWeight& part) {
    TESSERA_CHECK(count < kMaxParts, "a product of too many tensors");
    parts[static_cast<size_t>(count++)] = part;
  }
  std::span<const PackedWeight> all() const {
    return std::span(parts).first(static_cast<size_t>(count));
  }
};

}  // namespace tessera
