// Replaces cuBLASLt over the emulation: the scalar CPU's ops, on device memory. Launches, and the
// rounding of activations, are those of cublas.cpp.

#include <vector>

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/matrix/e4m3.h"
#include "tests/kernels/cuda/emulator/emulated_memory.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"

namespace tessera::cuda {
namespace {

using simt::emulation::DeviceAccess;

int64_t emulated_weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return multiplies(format, rows, cols) ? packed_weight_bytes(format, rows, cols) : 0;
}

void pack(MatrixView<const float> source, int64_t first_row, const PackedWeight& weight) {
  const DeviceAccess access;
  pack_weight(source, first_row, weight);
}

// Element i of activations that weights of `format` are multiplied by, without its row's scale.
float element(const Activations& in, WeightFormat format, int64_t i) {
  switch (format) {
    case WeightFormat::bf16:
      return to_f32(static_cast<const bf16*>(in.rows)[i]);
    case WeightFormat::f16:
      return to_f32(static_cast<const f16*>(in.rows)[i]);
    case WeightFormat::fp8:
      return to_f32(static_cast<const e4m3*>(in.rows)[i]);
    default:
      return static_cast<const float*>(in.rows)[i];
  }
}

// The CPU's op rounds again, which changes no rounded number: the largest E4M3 of a row is 448, so
// its scale is 1. The row's own scale is applied to the sum, as the CPU does.
void multiply(const LinearArgs& args, const Activations& in) {
  const PackedWeight& weight = *args.weight;
  const bool fp8 = weight.format == WeightFormat::fp8;
  std::vector<float> values(static_cast<size_t>(weight.cols));
  std::vector<float> sums(static_cast<size_t>(weight.rows));
  static ThreadPool thread(1);
  for (int64_t row = 0; row < args.in.rows; ++row) {
    for (int64_t i = 0; i < weight.cols; ++i) {
      values[static_cast<size_t>(i)] = element(in, weight.format, row * in.stride + i);
    }
    scalar::linear({.in = {values.data(), 1, weight.cols, weight.cols},
                    .weight = &weight,
                    .bias = {},
                    .out = {sums.data(), 1, weight.rows, weight.rows},
                    .scratch = {}},
                   thread.stream());
    const std::span<float> out = args.out.row(row);
    for (size_t i = 0; i < sums.size(); ++i) {
      const float sum = fp8 ? sums[i] * in.scales[row] : sums[i];
      out[i] = args.accumulate ? out[i] + sum : sum;
    }
  }
}

void linear(const LinearArgs& args, Stream stream) {
  const Activations in = activations_of(args, stream);
  simt::emulation::start(
      [later = args, weight = *args.weight, in]() mutable {
        const DeviceAccess access;
        later.weight = &weight;  // the caller's may be gone
        multiply(later, in);
      },
      stream);
  if (!args.bias.empty()) {
    add_bias(args.out, args.bias.data(), stream);
  }
}

// Size of a product that is small enough for tests: [kPeak, kPeak] times [kPeak, kPeak].
constexpr int64_t kPeak = 32;

int64_t peak_bytes(WeightFormat arithmetic) {
  return emulated_weight_bytes(arithmetic, kPeak, kPeak) > 0 ? 3 * kPeak * kPeak * 4 : 0;
}

int64_t peak(WeightFormat, std::byte* memory, Stream stream) {
  simt::emulation::start(
      [memory] {
        const DeviceAccess access;
        const auto* in = reinterpret_cast<const float*>(memory);
        auto* out = reinterpret_cast<float*>(memory) + 2 * kPeak * kPeak;
        for (int64_t i = 0; i < kPeak * kPeak; ++i) {
          out[i] = 0;
          for (int64_t k = 0; k < kPeak; ++k) {
            out[i] += in[i / kPeak * kPeak + k] * in[kPeak * kPeak + i % kPeak * kPeak + k];
          }
        }
      },
      stream);
  return 2 * kPeak * kPeak * kPeak;
}

}  // namespace

LinearOps linear_ops() {
  return {emulated_weight_bytes, pack, rounded_bytes, linear, peak_bytes, peak};
}

}  // namespace tessera::cuda
