#include "kernels/kv/rotation.h"

#include "kernels/kv/rotation_levels.h"

namespace tessera {
namespace {

struct Baseline {};

}  // namespace

void rotate(float* channels, int32_t head_dim) {
  RotationLevels<Baseline>::rotate(channels, head_dim);
}

}  // namespace tessera
