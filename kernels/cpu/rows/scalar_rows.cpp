#include <cmath>

#include "kernels/cpu/rows/row_ops.h"

namespace tessera::scalar {
namespace {

void rms_norm_row(const NormRow& row, float* out) {
  double sum = 0;  // ascending order, precise enough as reference for others
  for (int64_t i = 0; i < row.count; ++i) {
    sum += double{row.in[i]} * double{row.in[i]};
  }
  const double mean = sum / static_cast<double>(row.count);
  const float inverse =
      static_cast<float>(double{row.scale} / std::sqrt(mean + double{row.epsilon}));
  for (int64_t i = 0; i < row.count; ++i) {
    out[i] = row.in[i] * inverse * row.weight[i] + (row.accumulate ? out[i] : 0);
  }
}

void rope_head(float* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float x = head[i];
    const float y = head[i + half];
    head[i] = x * cos[i] - y * sin[i];
    head[i + half] = y * cos[i] + x * sin[i];
  }
}

void silu_mul_row(const float* gate, const float* up, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
}

}  // namespace

const RowOps kRowOps{rms_norm_row, rope_head, silu_mul_row};

}  // namespace tessera::scalar
