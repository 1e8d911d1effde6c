#pragma once

#include <cstdint>

namespace tessera {

// Computes weight_of (kernels/sampling.h) of consecutive tokens, with the same bits on every
// instruction set.
// Requires: logits <= best, best finite, temperature > 0. Pointers are not owned.
struct WeighArgs {
  const float* logits;  // [count]
  int64_t count;
  float best;
  float temperature;
  uint64_t* weights;  // [count]
};
using Weigh = void(const WeighArgs& args);

namespace scalar {
Weigh weigh;
}
namespace avx2 {
Weigh weigh;
}
namespace avx512 {
Weigh weigh;
}

}  // namespace tessera
