#include "kernels/cpu/recurrence/delta_step.h"

namespace tessera::scalar {

// A column of the state has nothing to do with the others.
void take_delta_step(const DeltaStep& step) {
  for (int64_t col = 0; col < step.value_dim; ++col) {
    float recalled = 0;
    for (int64_t i = 0; i < step.key_dim; ++i) {
      float& element = step.state[i * step.value_dim + col];
      element *= step.decay;
      recalled += step.key[i] * step.key_factor * element;
    }
    const float added = step.rate * (step.value[col] - recalled);
    float read = 0;
    for (int64_t i = 0; i < step.key_dim; ++i) {
      float& element = step.state[i * step.value_dim + col];
      element += step.key[i] * step.key_factor * added;
      read += step.query[i] * step.query_factor * element;
    }
    step.out[col] = read;
  }
}

}  // namespace tessera::scalar
