#pragma once

#include "bench/device.h"

namespace tessera::bench {

// Returns: the GPU that libtessera_cuda.so opens (kernels/cuda_library.h).
// Errors: exits with a message that names the missing part: the library, the driver, a GPU or an
// op.
std::unique_ptr<Device> make_cuda_device();

}  // namespace tessera::bench
