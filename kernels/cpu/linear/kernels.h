#pragma once

#include <cstddef>
#include <cstdint>

// Interface of the `linear` kernels of an instruction set: functions on plain pointers. Nothing
// else is included here, so that files compiled with wide instructions emit no shared inline
// function.
namespace tessera {

// One row of activations to convert, and its destination. Pointers are not owned. Behind the codes
// and the scale of a block of integers, 32 bits correct for codes of weights that have no sign:
//   symmetric     -offset * (sum of the codes), an integer, from which a block's sum starts
//   with minimum  scale * (sum of the codes), an f32, the factor of the weights' minimum
struct ActivationRow {
  const float* in = nullptr;  // [cols]
  int64_t cols = 0;
  std::byte* out = nullptr;  // [out_bytes], zero beyond cols
  int64_t out_bytes = 0;
  float* scale = nullptr;  // one value, or one of each group; fp8 only
};

// A few tokens times a slice of outputs, over a stretch (consecutive units) of the inputs.
// Stretches of one tile come in ascending order and pass their sums on in `partial`. Pointers are
// not owned.
struct LinearTile {
  const std::byte* activations = nullptr;  // converted rows
  int64_t activation_stride = 0;           // bytes
  const float* scales = nullptr;           // [rows, scale_stride]; fp8 only
  int64_t scale_stride = 1;                // scales of a row
  int64_t first_unit = 0;                  // start of the stretch, a multiple of a superblock
  int64_t units = 0;                       // in the stretch
  float* partial = nullptr;                // [rows, slice] sums so far
  bool begins = true;                      // the first stretch: sums start from zero
  bool ends = true;                        // the last stretch: sums become outputs
  const std::byte* ahead = nullptr;        // weights to prefetch; tall tiles only
  int64_t ahead_step = 0;                  // bytes for each unit
  int64_t first_byte = 0;                  // place of the stretch in a panel; blocks, fp8 groups
  int64_t scale_before = 0;                // blocks of a group: bytes of its blocks before that
  int64_t scale_bytes = 0;                 // bytes of all blocks of a group
  const std::byte* panel = nullptr;        // panel in which the slice starts
  int64_t panel_bytes = 0;
  int64_t first_output = 0;     // start of the slice in its panel
  int64_t outputs = 0;          // existing outputs of the slice, at least 1
  const float* bias = nullptr;  // [outputs]; null: none
  bool accumulate = false;
  float* out = nullptr;
  int64_t out_stride = 0;
};

using ConvertActivations = void (*)(const ActivationRow&);
using MultiplyTile = void (*)(const LinearTile&);

// Register tiles of one width. by_rows[rows - 1] multiplies tiles of `rows` rows, 1 to max_rows.
struct TileKernels {
  int64_t slice = 0;  // outputs
  int64_t max_rows = 0;
  const MultiplyTile* by_rows = nullptr;
  // Called before and after the tiles that a thread multiplies one after another; null: not needed.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

struct FormatKernels {
  ConvertActivations convert = nullptr;
  int64_t input_bytes = 0;  // of a converted activation
  TileKernels wide;         // for few rows: more independent sums, more bytes in flight
  TileKernels tall;         // for many rows: a loaded weight serves as many rows as registers allow
  // Replaces `tall` from so many rows and inputs on. The bits are the same. by_rows is null: none.
  TileKernels large = {};
  int64_t large_rows = 0;
  int64_t large_inputs = 0;
};

struct LinearKernels {
  FormatKernels formats[25];  // indexed by WeightFormat
};

namespace avx2 {
extern const LinearKernels kLinearKernels;
}
namespace avx512 {
extern const LinearKernels kLinearKernels;
}
namespace amx {
LinearKernels linear_kernels();
}

}  // namespace tessera
