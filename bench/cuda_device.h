#pragma once

#include "bench/device.h"

namespace tessera::bench {

// The GPU that libtessera_cuda.so opens (kernels/cuda_library.h). Gives up, and says what is
// missing, where there is no such library, no driver, no GPU or no op.
std::unique_ptr<Device> make_cuda_device();

}  // namespace tessera::bench
