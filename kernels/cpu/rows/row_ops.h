#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// A row, or one head of it, to be divided by its root mean square.
struct NormRow {
  const float* in;
  const float* weight;
  int64_t count;
  float epsilon;
  float scale;      // of the result
  bool accumulate;  // adds the result to `out`
};

// Row ops of one instruction set; each handles one row, or one head of a row. Loops over rows and
// threads are shared code in row_ops.cpp. The result of a row depends on that row only. Counts are
// in floats.
struct RowOps {
  // out (+)= in * scale / sqrt(mean(in^2) + epsilon) * weight. The sum of squares has one fixed
  // order.
  void (*rms_norm)(const NormRow& row, float* out);
  // Rotates the pairs (head[i], head[i + half]) by the angles with these cosines and sines.
  void (*rope)(float* head, const float* cos, const float* sin, int64_t half);
  // out = gate / (1 + exp(-gate)) * up
  void (*silu_mul)(const float* gate, const float* up, int64_t count, float* out);
};

namespace scalar {
extern const RowOps kRowOps;
}
namespace avx2 {
extern const RowOps kRowOps;
}
namespace avx512 {
extern const RowOps kRowOps;
}

}  // namespace tessera
