#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace tessera {

// A backend that a test is to run on. Tests of ops see no more than this, so that one source serves
// the CPU, the emulated GPU and a real one; each binary links one of the files that answer.
struct Device {
  std::string name;
  const Backend* backend = nullptr;
  Stream stream;
  void (*wait)(Stream) = [](Stream) {};  // until the results of ops are there to be read
  // Lets ops reach memory that operator new did not give, until leave(); none if it is null.
  void (*reach)(void* memory, size_t bytes) = [](void*, size_t) {};
  void (*leave)(void* memory) = [](void*) {};
};

inline void PrintTo(const Device& device, std::ostream* out) {
  *out << device.name;
}

// None where the binary's kind of device is missing on this machine: its tests are then skipped.
std::vector<Device> devices_of_this_machine();

}  // namespace tessera
