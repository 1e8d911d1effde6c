#pragma once

#include "kernels/device_probe.h"

namespace tessera::cuda {

const DeviceProbe& device_probe();

// Every 16 bytes of `memory` once.
void read_all(void* memory, int64_t bytes, Stream stream);

}  // namespace tessera::cuda
