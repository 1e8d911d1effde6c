#include <cuda_runtime.h>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/probe/probe.h"
#include "kernels/cuda/stream/cuda_stream.h"

namespace tessera::cuda {
namespace {

void copy(void* to, const void* from, int64_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                        CudaStream::of(stream).handle()));
}

DeviceProbe make() {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  const LinearOps linear = linear_ops();
  return {.device = device.name,
          .multiprocessors = device.multiProcessorCount,
          .cache_bytes = device.l2CacheSize,
          .memory = memory_use,
          .copy = copy,
          .read = read_all,
          .multiply_bytes = linear.peak_bytes,
          .multiply = linear.peak};
}

}  // namespace

const DeviceProbe& device_probe() {
  static const DeviceProbe kProbe = make();
  return kProbe;
}

}  // namespace tessera::cuda
