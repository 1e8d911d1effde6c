#pragma once

#include <cstdint>
#include <functional>

namespace tessera {

// How a checkpoint is read.
struct LoadOptions {
  int32_t threads = 1;  // that convert and pack
  // Called after each piece, by one thread at a time, with the number of weights; may be null.
  std::function<void(int64_t done, int64_t total)> progress = nullptr;
};

}  // namespace tessera
