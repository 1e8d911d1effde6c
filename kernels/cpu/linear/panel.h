#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

inline constexpr int64_t kPanelRows = 32;  // outputs of a panel
inline constexpr int64_t kUnitRowBytes = kPanelRows * 4;
static_assert(kPackRows % kPanelRows == 0);

// Byte layout of a packed weight, for every instruction set. Outputs are cut into panels of 32,
// each contiguous. Inside a panel, weights are in units of 32 bits that hold consecutive inputs of
// one output: one f32, two bf16, four int8 or fp8, eight int4. The 32 outputs of a unit are
// adjacent. A kernel loads a vector of outputs, multiplies it by one broadcast unit of activations,
// and never sums across lanes.
//
//   f32, bf16  [units][32] units
//   f16        [cols][32] f16: a row of them becomes units of f32 when it is loaded
//   int8       [32] f32 scales, then [units][32] units; a byte holds weight + 128
//   int4       groups of [32] bf16 scales, then [4][32] units; a nibble holds weight + 8.
//              A 32-bit word j of the scales holds output j's scale in its low half and output
//              16 + j's in its high half. The low nibbles of a unit hold its first four inputs.
//   fp8        [32] f32 scales, then [units][32] units of inputs 0, 2, 1 and 3 of four, so that a
//              unit's even bytes become one pair of bf16 and its odd bytes the next
//
// Integers are stored with an offset because vpdpbusd needs one unsigned operand. Accumulators
// start from the offset times the sum of a row's activations, as a correction.
//
// Inputs beyond `cols` and outputs beyond `rows` hold zero weights.
struct PanelLayout {
  static constexpr int64_t kGroupUnits = kInt4Group / 8;
  static constexpr int64_t kScaleBytes = kPanelRows * 4;       // scales of an int8 or fp8 panel
  static constexpr int64_t kGroupScaleBytes = kPanelRows * 2;  // scales of an int4 group
  static constexpr int64_t kGroupBytes = kGroupScaleBytes + kGroupUnits * kUnitRowBytes;

  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;
  int64_t cols = 0;

  constexpr int64_t panels() const { return round_up(rows, kPackRows) / kPanelRows; }
  constexpr int64_t groups() const { return div_ceil(cols, kInt4Group); }
  constexpr int64_t panel_bytes() const {
    switch (format) {
      case WeightFormat::f32:
        return cols * kUnitRowBytes;
      case WeightFormat::bf16:
        return div_ceil(cols, 2) * kUnitRowBytes;
      case WeightFormat::f16:
        return cols * kUnitRowBytes / 2;
      case WeightFormat::int8:
      case WeightFormat::fp8:
        return kScaleBytes + div_ceil(cols, 4) * kUnitRowBytes;
      case WeightFormat::int4:
        return groups() * kGroupBytes;
    }
    return 0;
  }
  constexpr int64_t bytes() const { return panels() * panel_bytes(); }
};

static_assert(PanelLayout{WeightFormat::bf16, 64, 3}.bytes() == 2 * 2 * 128);
static_assert(PanelLayout{WeightFormat::int4, 64, 256}.bytes() * 8 == 64 * 256 * 4.5);

// Layout of a call's activations in the scratch space of LinearArgs. Rows are row-major in the
// weight's element type, zero beyond `cols`. f16 activations are rounded to f16 and stored as f32;
// fp8 ones are stored as bf16. Integers also have corrections for the offset.
struct ActivationLayout {
  // AMX tile registers read this many rows at a time. Data read from rows that do not exist reaches
  // no output.
  static constexpr int64_t kTileTokens = 32;

  WeightFormat format = WeightFormat::f32;
  int64_t tokens = 0;
  int64_t cols = 0;

  // Returns: number of units that a kernel reads of a row.
  constexpr int64_t units() const {
    switch (format) {
      case WeightFormat::f32:
      case WeightFormat::f16:
        return cols;
      case WeightFormat::bf16:
        return div_ceil(cols, 2);
      case WeightFormat::int8:
        return div_ceil(cols, 4);
      case WeightFormat::int4:
        return round_up(cols, kInt4Group) / 4;
      case WeightFormat::fp8:
        return round_up(cols, 4) / 2;  // bf16 with E4M3 values
    }
    return 0;
  }
  // Returns: bytes between rows, an odd number of cache lines. The rows of a tile then do not fall
  // into the same cache set.
  constexpr int64_t stride() const { return (div_ceil(units() * 4, 64) | 1) * 64; }
  constexpr int64_t corrections() const {  // in a row
    return format == WeightFormat::int4 ? units() * 4 / kInt4Group : 1;
  }
  constexpr int64_t scales_offset() const { return round_up(tokens, kTileTokens) * stride(); }
  constexpr int64_t corrections_offset() const { return scales_offset() + tokens * 4; }
  constexpr int64_t bytes() const { return corrections_offset() + tokens * corrections() * 4; }
};

}  // namespace tessera
