#pragma once

#include "kernels/device_probe.h"

namespace tessera::cuda {

// Probe of device 0; valid until the program ends.
const DeviceProbe& device_probe();

DeviceMemoryUse memory_use();  // of device 0

// Reads every 16 bytes of `memory` (device memory) once; launched, not waited for. `bytes` and the
// address are multiples of 16.
void read_all(void* memory, int64_t bytes, Stream stream);

}  // namespace tessera::cuda
