#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace tessera {

// A backend under test. Tests of ops use only this, so that one source serves the CPU, the emulated
// GPU and a real one. Each binary links one file that defines devices_of_this_machine(). Backend
// not owned.
struct Device {
  std::string name;
  const Backend* backend = nullptr;
  Stream stream;
  void (*wait)(Stream) = [](Stream) {};  // returns when the results of ops can be read
  // Lets ops reach memory that operator new did not give, until leave(). No effect on null.
  void (*reach)(void* memory, size_t bytes) = [](void*, size_t) {};
  void (*leave)(void* memory) = [](void*) {};
};

inline void PrintTo(const Device& device, std::ostream* out) {
  *out << device.name;
}

// Returns: true if the device has kernels for pages of the format, at head dimensions that it
// serves.
inline bool serves(const Device& device, KvFormat format) {
  const auto serves_pages = device.backend->serves_pages;
  return serves_pages == nullptr || serves_pages(format, 64);
}

// Returns: devices of the binary's kind; empty if this machine has none, and its tests are skipped.
std::vector<Device> devices_of_this_machine();
// Returns: the same, each once more for every number of blocks that its sampler may give a row.
std::vector<Device> sampling_devices();

}  // namespace tessera
