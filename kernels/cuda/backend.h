#pragma once

#include "kernels/backend.h"

namespace tessera {

// The ops of the CUDA backend. An op that is not written yet is null; missing_ops()
// (kernels/cuda_library.h) names them, and nothing is served until there are none.
const Backend& cuda_backend();

}  // namespace tessera
