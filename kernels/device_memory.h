#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tessera {

struct Stream;

// The memory that a backend's ops work on, where it is not the host's own: weights, activations and
// pages lie in it, only ops read and write it, and the host copies.
struct DeviceMemory {
  // At a multiple of 256, holding anything; null where the device has not so many bytes.
  void* (*allocate)(int64_t bytes);
  void (*free)(void* memory);
  // What is there before the first step. Waits.
  void (*upload)(void* to, const void* from, int64_t bytes);
  // What all ops that were started on the stream have left. Waits.
  void (*download)(void* to, const void* from, int64_t bytes, Stream stream);
  // Until all ops that were started on the stream are done.
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
