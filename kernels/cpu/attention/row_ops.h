#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// What an instruction set brings to the ops that treat one row (or one head of it) at a time. The
// loops over rows and the sharing among threads are written once, in row_ops.cpp. A row's result
// depends on the row alone.
struct RowOps {
  // out = in / sqrt(mean(in^2) + epsilon) * weight; the sum of squares has one fixed order.
  void (*rms_norm)(const float* in, const float* weight, int64_t count, float epsilon, float* out);
  // Rotates the pairs (head[i], head[i + half]) by the angles whose cosines and sines are given.
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
