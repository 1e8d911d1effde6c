#pragma once

#include <cstdint>

namespace tessera {

// One token of one value head. The sums over key_dim have a fixed order.
struct DeltaStep {
  const float* query;  // [key_dim]
  const float* key;    // [key_dim]
  const float* value;  // [value_dim]
  float query_factor;
  float key_factor;
  float decay;  // factor of the state
  float rate;
  int64_t key_dim;
  int64_t value_dim;
  float* state;  // [key_dim, value_dim]
  float* out;    // [value_dim]
};

using TakeDeltaStep = void(const DeltaStep& step);

namespace scalar {
TakeDeltaStep take_delta_step;
}
namespace avx2 {
TakeDeltaStep take_delta_step;
}
namespace avx512 {
TakeDeltaStep take_delta_step;
}

}  // namespace tessera
