#pragma once

#include "bench/device.h"

namespace tessera::bench {

// This machine's cores. threads: 0 takes all.
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace tessera::bench
