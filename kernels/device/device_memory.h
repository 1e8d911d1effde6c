#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tessera {

struct Stream;

// Memory of a backend whose ops do not work on host memory. Weights, activations and pages are in
// it. Only ops read and write it; the host copies.
struct DeviceMemory {
  // Returns: uninitialised memory at a multiple of 256 bytes; null if the device has too little.
  void* (*allocate)(int64_t bytes);
  void (*free)(void* memory);
  // Copies from host to device, for data that is there before the first step. Waits.
  void (*upload)(void* to, const void* from, int64_t bytes);
  // Copies from device to host after all ops that were started on the stream. Waits.
  void (*download)(void* to, const void* from, int64_t bytes, Stream stream);
  // Waits until all ops that were started on the stream are done.
  void (*wait)(Stream stream);
};

struct DeviceFree {
  const DeviceMemory* memory = nullptr;
  void operator()(std::byte* bytes) const { memory->free(bytes); }
};
using DeviceBytes = std::unique_ptr<std::byte, DeviceFree>;

inline DeviceBytes allocate(const DeviceMemory& memory, int64_t bytes) {
  return {static_cast<std::byte*>(memory.allocate(bytes)), DeviceFree{&memory}};
}

}  // namespace tessera
