#pragma once

#include "kernels/backend.h"

namespace tessera {

// Table of the CUDA ops; valid until the program ends. An op without an implementation is null;
// missing_ops() (kernels/cuda_library.h) names such ops. The library refuses to open while there
// are any.
const Backend& cuda_backend();

}  // namespace tessera
