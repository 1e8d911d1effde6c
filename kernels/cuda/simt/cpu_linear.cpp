// What stands in for cuBLASLt over the emulation: the scalar CPU's ops, on device memory.

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/simt/emulated_memory.h"
#include "kernels/cuda/simt/emulated_stream.h"

namespace tessera::cuda {
namespace {

using simt::emulation::DeviceAccess;

int64_t emulated_weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  const bool served = format == WeightFormat::f32 || format == WeightFormat::bf16;
  return served ? packed_weight_bytes(format, rows, cols) : 0;
}

void pack(MatrixView<const float> source, int64_t first_row, const PackedWeight& weight) {
  const DeviceAccess access;
  pack_weight(source, first_row, weight);
}

void linear(const LinearArgs& args, Stream) {
  simt::emulation::start([args] {
    static ThreadPool thread(1);
    const DeviceAccess access;
    scalar::linear(args, thread.stream());
  });
}

}  // namespace

LinearOps linear_ops() {
  return {emulated_weight_bytes, pack, linear_scratch_bytes, linear};
}

}  // namespace tessera::cuda
