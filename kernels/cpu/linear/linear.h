#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// Weight packing and `linear` of the CPU backend; kernels/backend.h has the contracts. All
// instruction sets share one packed layout (panel.h) and one packing. They differ in the conversion
// of activations and in the multiplication.
int64_t packed_weight_bytes(WeightFormat format, int64_t rows, int64_t cols);
void pack_weight(MatrixView<const float> source, int64_t first_row, const PackedWeight& weight);
void pack_codes(const WeightCodes& codes, int64_t first_row, const PackedWeight& weight);
int64_t linear_scratch_bytes(int64_t tokens, int64_t cols);

// Looks up one row of a packed weight, as f32: bit for bit the number that its format describes.
// out: [weight.cols]
// Requires: looks_up_rows(weight.format).
void look_up_row(const PackedWeight& weight, int64_t row, float* out);
bool looks_up_rows(WeightFormat format);

namespace scalar {
void linear(const LinearArgs& args, Stream stream);
}
namespace avx2 {
void linear(const LinearArgs& args, Stream stream);
}
namespace avx512 {
void linear(const LinearArgs& args, Stream stream);
}
namespace amx {
void linear(const LinearArgs& args, Stream stream);
}

}  // namespace tessera
