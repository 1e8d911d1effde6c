#pragma once

#include "kernels/backend.h"

namespace tessera::cuda {

// The first three convert activations, [tokens, cols], to the format of the weights that multiply
// them. Each is one launch with one block for each row. `out`: [tokens, cols] without gaps.
void to_bf16_rows(MatrixView<const float> in, bf16* out, Stream stream);
// Values beyond the range of f16 become its largest finite value.
void to_f16_rows(MatrixView<const float> in, f16* out, Stream stream);
// E4M3 of in / scale, such that a row's largest magnitude is 448. `scales`: [tokens], device
// memory. Same bits as the CPU's.
void to_e4m3_rows(MatrixView<const float> in, uint8_t* out, float* scales, Stream stream);

// Adds bias[i] to column i of every row of `out`. `bias`: device memory.
void add_bias(MatrixView<float> out, const float* bias, Stream stream);

}  // namespace tessera::cuda
