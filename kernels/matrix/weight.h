#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "base/check.h"
#include "kernels/matrix/half.h"
#include "kernels/matrix/view.h"

namespace tessera {

// Format of a weight matrix in a backend. encoding() describes each of them as data.
//   f32   exact; the oracle
//   bf16  activations are rounded to bf16 too, sums are f32
//   f16   activations are rounded to f16 too, those beyond 65504 to 65504; sums are f32
//   fp8   E4M3 (e4m3.h), one scale per output row; activations E4M3, one scale per token; sums are
//         f32
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
  int6_super,    // symmetric, superblocks
  int4_group32,  // symmetric, a scale for each group of inputs, and one for each output
  int4_group64,
  int4_group128,
  int4_row,     // one group of all inputs
  int4_zero32,  // likewise, with a zero point for each group
  int4_zero64,
  int4_zero128,
  int4_zero_row,
  int8_group32,  // symmetric, groups
  int8_group64,
  int8_group128,
  int8_row,
  fp8_group128  // E4M3, a scale for each output and 128 inputs; activations likewise
};

inline constexpr int kWeightFormatCount = 25;

// Formats that any matrix can be converted to.
inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::f32,  WeightFormat::bf16,
                                                  WeightFormat::f16,  WeightFormat::int8,
                                                  WeightFormat::int4, WeightFormat::fp8};

// Formats of integers. All of them can be packed from codes (WeightCodes).
inline constexpr WeightFormat kCodedFormats[] = {
    WeightFormat::int8,           WeightFormat::int4,          WeightFormat::int4_symmetric,
    WeightFormat::int5_symmetric, WeightFormat::int5,          WeightFormat::int4_super,
    WeightFormat::int5_super,     WeightFormat::int6_super,    WeightFormat::int4_group32,
    WeightFormat::int4_group64,   WeightFormat::int4_group128, WeightFormat::int4_row,
    WeightFormat::int4_zero32,    WeightFormat::int4_zero64,   WeightFormat::int4_zero128,
    WeightFormat::int4_zero_row,  WeightFormat::int8_group32,  WeightFormat::int8_group64,
    WeightFormat::int8_group128,  WeightFormat::int8_row};

// How a format stores the weights of an output.
//   symmetric     weight = scale * (code - offset)
//   with minimum  weight = scale * code + minimum
//   zero point    weight = scale * (code - zero); its minimum is -zero * scale
// Codes are from 0 on. With superblocks, scale and minimum of a block are each an integer factor of
// 8 bits times the superblock's. With row scales, a scale is that of the group times the output's.
struct WeightEncoding {
  enum class Scale : uint8_t { none, f16, f32 };
  static constexpr int64_t kWholeRow = int64_t{1} << 40;  // a group of all inputs

  int64_t bits = 0;           // of a weight or its code
  int64_t block = 0;          // inputs that share a scale; 0: all of them
  Scale scale = Scale::none;  // type of scale and minimum
  bool minimum = false;
  int32_t offset = 0;
  int64_t superblock = 0;  // inputs; 0: none
  int64_t group = 0;       // inputs that share a scale, whole blocks; 0: those of a block
  bool zero = false;       // a minimum is stored as a zero point of 8 bits
  bool row_scale = false;  // one f32 for each output

  constexpr bool is_coded() const { return block > 0; }
  constexpr int64_t blocks(int64_t cols) const { return block == 0 ? 1 : div_ceil(cols, block); }
  // Returns: inputs that share a scale of type `scale`; 0: all of them.
  constexpr int64_t scale_inputs() const {
    return superblock > 0 ? superblock : group > 0 ? group : block;
  }
  // Returns: inputs that codes have at least together; 0: any number.
  constexpr int64_t whole_inputs() const { return superblock > 0 ? superblock : block; }
  // Returns: inputs that ranks cannot divide; 0: none.
  constexpr int64_t undivided_inputs() const { return group == kWholeRow ? block : scale_inputs(); }
  // Returns: scales of one output.
  constexpr int64_t scales(int64_t cols) const {
    return scale_inputs() == 0 ? 1 : div_ceil(cols, scale_inputs());
  }
  // Returns: bytes of one output's scale and minimum, for one block or superblock.
  constexpr int64_t scale_bytes() const {
    const int64_t one = scale == Scale::none ? 0 : scale == Scale::f16 ? 2 : 4;
    return zero ? one + 1 : minimum ? 2 * one : one;
  }
  // Returns: bytes of one output's factors of scale and minimum, for one block.
  constexpr int64_t factor_bytes() const { return superblock == 0 ? 0 : minimum ? 2 : 1; }
  // Returns: bytes of one output's weights. The last block or superblock is stored whole.
  constexpr int64_t row_bytes(int64_t cols) const {
    if (block == 0) {
      return cols * bits / 8 + scales(cols) * scale_bytes();
    }
    const int64_t stored = round_up(cols, superblock > 0 ? superblock : block);
    return stored * bits / 8 + stored / block * factor_bytes() + scales(cols) * scale_bytes() +
           (row_scale ? 4 : 0);
  }
};

// One line of the table of formats.
struct WeightFormatLine {
  WeightFormat format;
  std::string_view name;
  WeightEncoding encoding;
};

// Formats of groups: a 16-bit scale for each, from a checkpoint with such groups.
constexpr WeightEncoding grouped_encoding(int64_t bits, int64_t group, bool zero) {
  return {.bits = bits,
          .block = 32,
          .scale = WeightEncoding::Scale::f16,
          .minimum = zero,
          .offset = zero ? 0 : 1 << (bits - 1),
          .group = group,
          .zero = zero,
          .row_scale = true};
}

// Blocks of integers bound the reach of an outlier among the inputs. Activations are cut into the
// blocks of their weights.
// clang-format off
inline constexpr WeightFormatLine kWeightFormatTable[] = {
    // in the order of WeightFormat
    {WeightFormat::f32,            "f32",            {.bits = 32}},
    {WeightFormat::bf16,           "bf16",           {.bits = 16}},
    {WeightFormat::f16,            "f16",            {.bits = 16}},
    {WeightFormat::int8,           "int8",           {.bits = 8, .block = 32, .scale = WeightEncoding::Scale::f16, .offset = 128}},
    {WeightFormat::int4,           "int4",           {.bits = 4, .block = 32, .scale = WeightEncoding::Scale::f16, .minimum = true}},
    {WeightFormat::fp8,            "fp8",            {.bits = 8, .scale = WeightEncoding::Scale::f32}},
    {WeightFormat::int4_symmetric, "int4_symmetric", {.bits = 4, .block = 32, .scale = WeightEncoding::Scale::f16, .offset = 8}},
    {WeightFormat::int5_symmetric, "int5_symmetric", {.bits = 5, .block = 32, .scale = WeightEncoding::Scale::f16, .offset = 16}},
    {WeightFormat::int5,           "int5",           {.bits = 5, .block = 32, .scale = WeightEncoding::Scale::f16, .minimum = true}},
    {WeightFormat::int4_super,     "int4_super",     {.bits = 4, .block = 32, .scale = WeightEncoding::Scale::f16, .minimum = true, .superblock = 256}},
    {WeightFormat::int5_super,     "int5_super",     {.bits = 5, .block = 32, .scale = WeightEncoding::Scale::f16, .minimum = true, .superblock = 256}},
    {WeightFormat::int6_super,     "int6_super",     {.bits = 6, .block = 16, .scale = WeightEncoding::Scale::f16, .offset = 32, .superblock = 256}},
    {WeightFormat::int4_group32,   "int4_group32",   grouped_encoding(4, 32, false)},
    {WeightFormat::int4_group64,   "int4_group64",   grouped_encoding(4, 64, false)},
    {WeightFormat::int4_group128,  "int4_group128",  grouped_encoding(4, 128, false)},
    {WeightFormat::int4_row,       "int4_row",       grouped_encoding(4, WeightEncoding::kWholeRow, false)},
    {WeightFormat::int4_zero32,    "int4_zero32",    grouped_encoding(4, 32, true)},
    {WeightFormat::int4_zero64,    "int4_zero64",    grouped_encoding(4, 64, true)},
    {WeightFormat::int4_zero128,   "int4_zero128",   grouped_encoding(4, 128, true)},
    {WeightFormat::int4_zero_row,  "int4_zero_row",  grouped_encoding(4, WeightEncoding::kWholeRow, true)},
    {WeightFormat::int8_group32,   "int8_group32",   grouped_encoding(8, 32, false)},
    {WeightFormat::int8_group64,   "int8_group64",   grouped_encoding(8, 64, false)},
    {WeightFormat::int8_group128,  "int8_group128",  grouped_encoding(8, 128, false)},
    {WeightFormat::int8_row,       "int8_row",       grouped_encoding(8, WeightEncoding::kWholeRow, false)},
    {WeightFormat::fp8_group128,   "fp8_group128",   {.bits = 8, .scale = WeightEncoding::Scale::f32, .group = 128}},
};
// clang-format on
static_assert(std::size(kWeightFormatTable) == kWeightFormatCount);
static_assert([] {
  for (int i = 0; i < kWeightFormatCount; ++i) {
    if (static_cast<int>(kWeightFormatTable[i].format) != i) return false;
  }
  return true;
}());

constexpr const WeightFormatLine& line_of(WeightFormat format) {
  return kWeightFormatTable[static_cast<size_t>(format)];
}
constexpr std::string_view name(WeightFormat format) {
  return line_of(format).name;
}
constexpr WeightEncoding encoding(WeightFormat format) {
  return line_of(format).encoding;
}
// E4M3 weights, whose scales are of outputs or groups.
constexpr bool is_fp8(WeightFormat format) {
  return format == WeightFormat::fp8 || format == WeightFormat::fp8_group128;
}

// Rows of weights as the codes of a checkpoint, in a format of kCodedFormats or of E4M3. Not owned.
// Requires: `cols` is a multiple of whole_inputs().
struct WeightCodes {
  WeightFormat format = WeightFormat::int8;
  MatrixView<const uint8_t> codes;           // [rows, cols]; E4M3 as bits
  MatrixView<const int8_t> scale_factors;    // [rows, blocks] with superblocks
  MatrixView<const int8_t> minimum_factors;  // [rows, blocks] with superblocks and minimum
  MatrixView<const f16> scales;              // [rows, scales]
  MatrixView<const f16> minimums;            // likewise, with a minimum that is no zero point
  MatrixView<const uint8_t> zeros;           // likewise, with zero points, at most 127
  MatrixView<const float> row_scales;        // [rows, 1] with row scales; of E4M3 [rows, scales]
};

// A weight in the layout of its backend. Written only by Backend::pack_weight and pack_codes, and
// read only by Backend::linear and embed. Does not own its memory.
struct PackedWeight {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;           // outputs
  int64_t cols = 0;           // inputs
  std::byte* data = nullptr;  // Backend::packed_weight_bytes(format, rows, cols) bytes
  // [cols]: input i of the weight is activation input_order[i]; null: in order. Integers only.
  const int32_t* input_order = nullptr;
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
