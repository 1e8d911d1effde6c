#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "kernels/device_probe.h"

namespace tessera {

// The CUDA backend is a library of its own, libtessera_cuda.so beside the program, opened when it
// is asked for: a program without it needs nothing of CUDA, and one with it starts without a
// driver.
struct CudaLibrary {
  const Backend* backend = nullptr;  // null: `error` says why
  Stream stream = {};                // what its ops run on; lives as long as the program
  const DeviceProbe* probe = nullptr;
  // Ranks of a GPU each, of processes that `hosts` connects: collective. Null: built without NCCL.
  std::unique_ptr<Communicator> (*connect)(std::unique_ptr<Communicator> hosts) = nullptr;
  std::string error = {};  // the library, the driver, a GPU or an op that is missing
};
CudaLibrary open_cuda_library();

// What the library exports, as kCudaEntry. Raise kCudaAbi with every change of what the two sides
// share.
inline constexpr int32_t kCudaAbi = 5;
inline constexpr const char* kCudaEntry = "tessera_cuda_open";
using OpenCuda = void(int32_t abi, CudaLibrary& library);

// The ops that a table lacks, with commas between; empty: none.
std::string missing_ops(const Backend& backend);

}  // namespace tessera
