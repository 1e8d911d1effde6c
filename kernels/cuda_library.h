#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "kernels/device_probe.h"

namespace tessera {

// The CUDA backend, loaded at run time from libtessera_cuda.so beside the program. A program
// without the library needs nothing of CUDA, and a program with it starts without a driver.
struct CudaLibrary {
  const Backend* backend = nullptr;  // not owned; null: `error` has the reason
  Stream stream = {};                // stream of its ops; valid until the program ends
  const DeviceProbe* probe = nullptr;
  // Returns: a communicator of ranks with one GPU each, in processes that `hosts` connects.
  // Collective. Null: built without NCCL.
  std::unique_ptr<Communicator> (*connect)(std::unique_ptr<Communicator> hosts) = nullptr;
  std::string error = {};  // the missing library, driver, GPU or op
};
CudaLibrary open_cuda_library();

// Entry point of the library: the symbol kCudaEntry. Increase kCudaAbi with every change of the
// interface between the program and the library.
inline constexpr int32_t kCudaAbi = 8;
inline constexpr const char* kCudaEntry = "tessera_cuda_open";
using OpenCuda = void(int32_t abi, CudaLibrary& library);

// Returns: names of the ops that a table lacks, separated by commas; empty if none is missing.
std::string missing_ops(const Backend& backend);

}  // namespace tessera
