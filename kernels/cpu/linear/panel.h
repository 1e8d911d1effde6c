#pragma once

#include <cstdint>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/cpu/linear/coded_panel.h"

namespace tessera {

static_assert(kPackRows % kPanelRows == 0);

// Byte layout of a packed weight, for every instruction set. Outputs are cut into panels of 32,
// each contiguous. Inside a panel, weights are in units of 32 bits that hold consecutive inputs of
// one output: one f32, two bf16, four int8 or fp8, eight int4. The 32 outputs of a unit are
// adjacent. A kernel loads a vector of outputs, multiplies it by one broadcast unit of activations,
// and never sums across lanes.
//
//   f32, bf16  [units][32] units
//   f16        [cols][32] f16: a row of them becomes units of f32 when it is loaded
//   fp8        for each group, or once: [32] f32 scales, then [units][32] units of inputs 0, 2, 1
//              and 3 of four, so that a unit's even bytes become one pair of bf16 and its odd bytes
//              the next
//   int*       [32] f32 row scales, if there are any. Then for each block, group or superblock:
//              [32] f16 scales, [32] f16 minimums or int8 negative zero points if there are any,
//              and its blocks. A block is
//                with superblocks: [32] factors of scales, [32] of minimums if there are any
//                5 or 6 bits: [32] units with the bits above the fourth. Inputs 4 p + j of a unit
//                  have theirs from bit 8 j + p * (bits - 4) on
//                8 bits: [8][32] units of four codes
//                else: [block / 8][32] units of eight low halves; the low nibbles of a unit are
//                  those of its first four inputs
//
// Codes are stored without a sign because vpdpbusd needs one unsigned operand. In a symmetric
// format, a block's sum starts from the offset times the sum of the activations.
//
// Inputs beyond `cols` and outputs beyond `rows` hold zero weights.
struct PanelLayout {
  static constexpr int64_t kScaleBytes = kPanelRows * 4;  // scales of an fp8 panel

  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;
  int64_t cols = 0;

  constexpr int64_t panels() const { return round_up(rows, kPackRows) / kPanelRows; }
  constexpr int64_t panel_bytes() const {
    switch (format) {
      case WeightFormat::f32:
        return cols * kUnitRowBytes;
      case WeightFormat::bf16:
        return div_ceil(cols, 2) * kUnitRowBytes;
      case WeightFormat::f16:
        return cols * kUnitRowBytes / 2;
      case WeightFormat::fp8:
      case WeightFormat::fp8_group128:
        return encoding(format).scales(cols) * kScaleBytes + div_ceil(cols, 4) * kUnitRowBytes;
      default:
        return kPanelRows * encoding(format).row_bytes(cols);
    }
  }
  constexpr int64_t bytes() const { return panels() * panel_bytes(); }

  // fp8: places of the scales of an input, and of the unit row that has the input.
  constexpr int64_t fp8_scales_at(int64_t input) const {
    const int64_t group = encoding(format).group;
    return group == 0 ? 0 : input / group * (kScaleBytes + group / 4 * kUnitRowBytes);
  }
  constexpr int64_t fp8_units_at(int64_t input) const {
    const int64_t group = encoding(format).group;
    const int64_t in_group = group == 0 ? input : input % group;
    return fp8_scales_at(input) + kScaleBytes + in_group / 4 * kUnitRowBytes;
  }
};

static_assert(PanelLayout{WeightFormat::bf16, 64, 3}.bytes() == 2 * 2 * 128);
static_assert(PanelLayout{WeightFormat::int8, 64, 256}.bytes() * 8 == 64 * 256 * 8.5);
static_assert(PanelLayout{WeightFormat::int4, 64, 256}.bytes() * 8 == 64 * 256 * 5);
static_assert(PanelLayout{WeightFormat::int4_super, 64, 256}.bytes() == 64 * (128 + 16 + 4));
static_assert(PanelLayout{WeightFormat::int4_zero128, 64, 256}.bytes() == 64 * (4 + 128 + 2 * 3));
static_assert(PanelLayout{WeightFormat::int6_super, 64, 256}.bytes() == 64 * (192 + 16 + 2));

// Layout of a call's activations in the scratch space of LinearArgs. Rows are row-major in the
// weight's element type, zero beyond `cols`. An input has `input_bytes`, which the kernels choose:
// f16 activations are rounded to f16 and stored as f32, fp8 ones are stored as bf16, and bf16 ones
// as bf16 or as f32. A row for blocks of integers has for each block:
//   [block] codes of `input_bytes`, an f32 scale, and 32 bits that the kernels derive from the sum
//   of the codes (ActivationRow)
struct ActivationLayout {
  // AMX tile registers read this many rows at a time. Data read from rows that do not exist reaches
  // no output.
  static constexpr int64_t kTileTokens = 32;

  WeightFormat format = WeightFormat::f32;
  int64_t tokens = 0;
  int64_t cols = 0;
  int64_t input_bytes = 0;

  // Returns: the largest input_bytes of an instruction set.
  static constexpr int64_t max_input_bytes(WeightFormat format) {
    return encoding(format).is_coded() ? 2 : 4;
  }
  // Returns: number of weight units that a row is multiplied with. Four integers are a unit.
  constexpr int64_t units() const {
    switch (format) {
      case WeightFormat::f32:
      case WeightFormat::f16:
        return cols;
      case WeightFormat::bf16:
        return div_ceil(cols, 2);
      case WeightFormat::fp8:
      case WeightFormat::fp8_group128:
        return round_up(cols, 4) / 2;  // pairs, as bf16 has them
      default: {
        const int64_t block = encoding(format).block;
        TESSERA_CHECK(block > 0, "a format of codes without blocks");
        return round_up(cols, block) / 4;
      }
    }
  }
  constexpr int64_t row_bytes() const {
    const WeightEncoding stored = encoding(format);
    if (stored.is_coded()) {
      return stored.blocks(cols) * (stored.block * input_bytes + 2 * 4);
    }
    const bool single = format == WeightFormat::f32 || format == WeightFormat::f16;
    return units() * (single ? 1 : 2) * input_bytes;
  }
  // Returns: bytes between rows, an odd number of cache lines. The rows of a tile then do not fall
  // into the same cache set.
  constexpr int64_t stride() const { return (div_ceil(row_bytes(), 64) | 1) * 64; }
  // fp8 has a scale for each row, or for each row and group.
  constexpr int64_t scales_offset() const { return round_up(tokens, kTileTokens) * stride(); }
  constexpr int64_t row_scales() const {
    return is_fp8(format) ? encoding(format).scales(cols) : 1;
  }
  constexpr int64_t bytes() const { return scales_offset() + tokens * row_scales() * 4; }
};

}  // namespace tessera
