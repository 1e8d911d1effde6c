#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// A fuzz target that replay.cpp runs by its name. CMakeLists.txt writes one for each parser.
class ReplayTarget {
 public:
  using Run = int (*)(const uint8_t* data, size_t size);
  // Requires: `name` outlives the program's main().
  ReplayTarget(const char* name, Run run);
};

}  // namespace tessera
