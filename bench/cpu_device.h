#pragma once

#include "bench/device.h"

namespace tessera::bench {

// Returns: a device that runs ops on the CPU cores of this machine. threads: 0 uses all cores.
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace tessera::bench
