#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/simt/block.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/e4m3.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kRowThreads = 256;

TESSERA_KERNEL(kRowThreads) bf16_kernel(MatrixView<const float> in, bf16* out) {
  const float* row = in.data + block_x() * in.stride;
  for (int64_t i = thread(); i < in.cols; i += kRowThreads) {
    out[block_x() * in.cols + i] = to_bf16(row[i]);
  }
}

TESSERA_KERNEL(kRowThreads) f16_kernel(MatrixView<const float> in, f16* out) {
  const float* row = in.data + block_x() * in.stride;
  for (int64_t i = thread(); i < in.cols; i += kRowThreads) {
    const float x = row[i];
    out[block_x() * in.cols + i] = as_f16(x > kLargestF16    ? kLargestF16
                                          : x < -kLargestF16 ? -kLargestF16
                                                             : x);
  }
}

// Magnitudes compare like their bits, and NaN is above all others. A NaN therefore reaches the
// scale and every output.
TESSERA_KERNEL(kRowThreads)
e4m3_kernel(MatrixView<const float> in, uint8_t* out, float* scales) {
  const float* row = in.data + block_x() * in.stride;
  int32_t largest = 0;
  for (int64_t i = thread(); i < in.cols; i += kRowThreads) {
    const auto bits = static_cast<int32_t>(std::bit_cast<uint32_t>(row[i]) & 0x7fffffffu);
    largest = bits > largest ? bits : largest;
  }
  const float magnitude = std::bit_cast<float>(block_max(largest, shared<OfWarps<int32_t>>()));
  const bool vanishes = magnitude < 1e-30f;  // its inverse might not be finite
  const float inverse = vanishes ? 0.0f : kLargestE4m3 / magnitude;
  for (int64_t i = thread(); i < in.cols; i += kRowThreads) {
    out[block_x() * in.cols + i] = to_e4m3(row[i] * inverse).bits;
  }
  if (thread() == 0) {
    scales[block_x()] = vanishes ? 0.0f : magnitude / kLargestE4m3;
  }
}

TESSERA_KERNEL(kRowThreads) add_bias_kernel(MatrixView<float> out, const float* bias) {
  float* row = out.data + block_x() * out.stride;
  for (int64_t i = thread(); i < out.cols; i += kRowThreads) {
    row[i] += bias[i];
  }
}

LaunchShape block_per_row(int64_t rows, int32_t shared_bytes) {
  return {
      .grid_x = static_cast<int32_t>(rows), .threads = kRowThreads, .shared_bytes = shared_bytes};
}

}  // namespace

void to_bf16_rows(MatrixView<const float> in, bf16* out, Stream stream) {
  launch(stream, block_per_row(in.rows, 0), bf16_kernel, in, out);
}

void to_f16_rows(MatrixView<const float> in, f16* out, Stream stream) {
  launch(stream, block_per_row(in.rows, 0), f16_kernel, in, out);
}

void to_e4m3_rows(MatrixView<const float> in, uint8_t* out, float* scales, Stream stream) {
  launch(stream, block_per_row(in.rows, sizeof(OfWarps<int32_t>)), e4m3_kernel, in, out, scales);
}

void add_bias(MatrixView<float> out, const float* bias, Stream stream) {
  launch(stream, block_per_row(out.rows, 0), add_bias_kernel, out, bias);
}

}  // namespace tessera::cuda
