#include <cuda_runtime.h>

#include <cstdlib>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/probe/probe.h"
#include "kernels/cuda/stream/cuda_stream.h"
#include "kernels/cuda_library.h"
#ifdef TESSERA_NCCL
#include "kernels/cuda/nccl/nccl_communicator.h"
#endif

using namespace tessera;

extern "C" [[gnu::visibility("default")]] void tessera_cuda_open(int32_t abi,
                                                                 CudaLibrary& library) {
  if (abi != kCudaAbi) {
    library.error = "the CUDA backend and the program are from different builds";
    return;
  }
  // All kernels are loaded now, so that the free memory, of which the KV arena may take the rest,
  // does not shrink with each kernel's first launch.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*replace=*/0);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    library.error = std::string("the CUDA backend finds no GPU: ") +
                    (error != cudaSuccess ? cudaGetErrorString(error) : "the driver reports none");
    return;
  }
  const std::string missing = missing_ops(cuda_backend());
  if (!missing.empty()) {
    library.error = "the CUDA backend is not finished; it lacks " + missing;
    return;
  }
  // Never destroyed: recordings and communicators of the program may live as long.
  static auto& stream = *new cuda::CudaStream;
  library.backend = &cuda_backend();
  library.stream = stream.stream();
  library.probe = &cuda::device_probe();
#ifdef TESSERA_NCCL
  library.connect = cuda::make_nccl_communicator;
#endif
}
