#pragma once

#include "kernels/device_memory.h"

namespace tessera::simt::emulation {

// The emulated device's memory. The host cannot touch it: it is mapped without access, but while a
// kernel runs or somebody copies. So what runs over the emulation shows that it keeps the two
// apart; a slip is a segmentation fault where it happens. New memory is 0xff, NaN in every float.
extern const DeviceMemory kMemory;

// While one lives, the memory is there. On one thread, as everything here.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace tessera::simt::emulation
