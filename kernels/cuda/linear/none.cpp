#include "kernels/cuda/linear/linear.h"

namespace tessera::cuda {

LinearOps linear_ops() {
  return {};
}

}  // namespace tessera::cuda
