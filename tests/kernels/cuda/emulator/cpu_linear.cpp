// Replaces cuBLASLt over the emulation: the scalar CPU's ops, on device memory.

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda/linear/linear.h"
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

void linear(const LinearArgs& args, Stream stream) {
  simt::emulation::start(
      [later = args, weight = *args.weight]() mutable {
        static ThreadPool thread(1);
        const DeviceAccess access;
        later.weight = &weight;  // the caller's may be gone
        scalar::linear(later, thread.stream());
      },
      stream);
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
  return {emulated_weight_bytes, pack, linear_scratch_bytes, linear, peak_bytes, peak};
}

}  // namespace tessera::cuda
