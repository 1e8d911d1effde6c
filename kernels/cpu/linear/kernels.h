#pragma once

#include <cstddef>
#include <cstdint>

// What an instruction set contributes to `linear`: functions on plain pointers. Nothing else is
// included here, so that files compiled with wide instructions emit no shared inline function.
namespace tessera {

// A row of activations to convert, and where to.
struct ActivationRow {
  const float* in = nullptr;  // [cols]
  int64_t cols = 0;
  std::byte* out = nullptr;  // [out_bytes], zero beyond cols
  int64_t out_bytes = 0;
  float* scale = nullptr;  // one; integers and fp8 only
  // What undoes the weights' offset. int8: one, -128 * sum, or 0 where the kernels take the offset
  // off themselves; int4: for each group, -8 * sum.
  int32_t* corrections = nullptr;
};

// A few tokens times a slice of outputs, over a stretch of the inputs. Stretches of one tile come
// in ascending order, and hand their sums on in `partial`.
struct LinearTile {
  const std::byte* activations = nullptr;  // converted rows
  int64_t activation_stride = 0;           // bytes
  const float* scales = nullptr;           // of the rows
  const int32_t* corrections = nullptr;
  int64_t correction_stride = 0;
  int64_t first_unit = 0;            // of the stretch; for int4 and fp8 a multiple of a group's
  int64_t units = 0;                 // in the stretch
  float* partial = nullptr;          // [rows, slice]: sums so far, of floats or of 32-bit integers
  bool begins = true;                // the first stretch: sums start from zero
  bool ends = true;                  // the last stretch: sums become outputs
  const std::byte* ahead = nullptr;  // weights to fetch meanwhile; tall tiles only
  int64_t ahead_step = 0;            // bytes for each unit
  const std::byte* panel = nullptr;  // the panel the slice starts in
  int64_t panel_bytes = 0;
  int64_t first_output = 0;     // of the slice in its panel
  int64_t outputs = 0;          // of the slice that exist, at least 1
  const float* bias = nullptr;  // of the slice, or none
  bool accumulate = false;
  float* out = nullptr;
  int64_t out_stride = 0;
};

using ConvertActivations = void (*)(const ActivationRow&);
using MultiplyTile = void (*)(const LinearTile&);

// Register tiles of one width: [rows - 1] multiplies tiles of 1 to max_rows rows.
struct TileKernels {
  int64_t slice = 0;  // outputs
  int64_t max_rows = 0;
  const MultiplyTile* by_rows = nullptr;
  // Around the tiles that a thread multiplies one after another; null: nothing.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

struct FormatKernels {
  ConvertActivations convert = nullptr;
  TileKernels wide;  // for few rows: more independent sums, more bytes in flight
  TileKernels tall;  // for many rows: each weight loaded serves as many rows as registers allow
};

struct LinearKernels {
  FormatKernels formats[6];  // by WeightFormat
};

namespace avx2 {
extern const LinearKernels linear_kernels;
}
namespace avx512 {
extern const LinearKernels linear_kernels;
}
namespace amx {
LinearKernels linear_kernels();
}

}  // namespace tessera
