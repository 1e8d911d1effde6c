#pragma once

#include "kernels/device/device_memory.h"

namespace tessera::simt::emulation {

// Memory of the emulated device. It is mapped without access, except while a kernel or a copy runs,
// so the host cannot touch it. Code that mixes up host and device memory therefore fails with a
// segmentation fault at the wrong access. New memory is 0xff, NaN in every float.
extern const DeviceMemory kMemory;

// Makes the emulated device's memory accessible while an instance exists; instances may nest. Not
// thread-safe, like everything here.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace tessera::simt::emulation
