#include "kernels/kv/rotation.h"

#include <cmath>

namespace tessera {
namespace {

void add_and_subtract(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

// The last two levels, for 4 neighbouring channels.
void finish_four(float* x, float norm) {
  add_and_subtract(x[0], x[2]);
  add_and_subtract(x[1], x[3]);
  add_and_subtract(x[0], x[1]);
  add_and_subtract(x[2], x[3]);
  for (int32_t i = 0; i < 4; ++i) {
    x[i] *= norm;
  }
}

// One level: channels `reach` apart.
void level(float* x, int32_t block, int32_t reach) {
  for (int32_t first = 0; first < block; first += 2 * reach) {
    for (int32_t i = first; i < first + reach; ++i) {
      add_and_subtract(x[i], x[i + reach]);
    }
  }
}

}  // namespace

void rotate(float* channels, int32_t head_dim) {
  const int32_t block = rotation_block(head_dim);
  const float norm = 1.0f / std::sqrt(static_cast<float>(block));
  for (float* x = channels; x < channels + head_dim; x += block) {
    int32_t reach = block / 2;
    for (; reach >= 4; reach /= 2) {
      level(x, block, reach);
    }
    if (block >= 4) {
      for (int32_t i = 0; i < block; i += 4) {
        finish_four(x + i, norm);
      }
    } else if (block == 2) {
      add_and_subtract(x[0], x[1]);
      x[0] *= norm;
      x[1] *= norm;
    }
  }
}

}  // namespace tessera
