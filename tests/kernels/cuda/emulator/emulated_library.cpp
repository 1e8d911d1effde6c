// Replaces libtessera_cuda.so (kernels/cuda_library.h) in programs that link this file: returns the
// emulation, so that tests cover how whole programs use a device's memory.

#include <cstring>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/probe/probe.h"
#include "kernels/cuda_library.h"
#include "tests/kernels/cuda/emulator/emulated_memory.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"

namespace tessera::cuda {
namespace {

void copy(void* to, const void* from, int64_t bytes, Stream stream) {
  simt::emulation::start(
      [=] {
        const simt::emulation::DeviceAccess access;
        std::memcpy(to, from, static_cast<size_t>(bytes));
      },
      stream);
}

}  // namespace

const DeviceProbe& device_probe() {
  static const DeviceProbe probe{.device = "emulation",
                                 .multiprocessors = 1,
                                 .cache_bytes = 0,
                                 .copy = copy,
                                 .read = read_all,
                                 .multiply_bytes = linear_ops().peak_bytes,
                                 .multiply = linear_ops().peak};
  return probe;
}

}  // namespace tessera::cuda

namespace tessera {

CudaLibrary open_cuda_library() {
  return {.backend = &cuda_backend(), .probe = &cuda::device_probe()};
}

}  // namespace tessera
