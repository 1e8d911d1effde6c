#pragma once

#include "kernels/backend.h"

namespace tessera::cuda {

// Activations in the format of the weights they meet; each is a launch of one block a row, rows of
// `out` without gaps.
void to_bf16_rows(MatrixView<const float> in, bf16* out, Stream stream);
// What is beyond f16's range becomes its largest.
void to_f16_rows(MatrixView<const float> in, f16* out, Stream stream);
// E4M3 of in / scale, where a row's largest is 448: the CPU's, bit for bit.
void to_e4m3_rows(MatrixView<const float> in, uint8_t* out, float* scales, Stream stream);

}  // namespace tessera::cuda
