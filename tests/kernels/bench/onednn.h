#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace tessera {

// The median nanoseconds of oneDNN's matrix product in one shape, weights in the layout it chooses
// and taken in turn from `copies`: f32; bf16 with f32 outputs; int8 as u8 times s8 to s32, without
// the conversion of activations that ours includes. 0 where it was not there at configure time or
// has no such product.
double onednn_nanoseconds(WeightFormat format, int64_t tokens, int64_t rows, int64_t cols,
                          int64_t copies);

}  // namespace tessera
