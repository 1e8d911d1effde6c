#pragma once

namespace tessera {

// Execution context of an op: a ThreadPool* for the CPU backend, a cuda::CudaStream* for CUDA.
// Last parameter of every op; there is no ambient stream. Not owned.
struct Stream {
  void* handle = nullptr;
};

}  // namespace tessera
