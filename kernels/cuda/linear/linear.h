#pragma once

#include "kernels/backend.h"

namespace tessera::cuda {

// The weight half of the backend. Its kernels are a library's (cuBLASLt, cublas.cu), which no
// emulation runs, so a build has one of three: that, none where the build machine has no cuBLAS
// (none.cpp), or in tests over the emulation the CPU's ops (simt/cpu_linear.cpp).
struct LinearOps {
  int64_t (*packed_weight_bytes)(WeightFormat format, int64_t rows, int64_t cols) = nullptr;
  void (*pack_weight)(MatrixView<const float> source, int64_t first_row,
                      const PackedWeight& weight) = nullptr;
  int64_t (*linear_scratch_bytes)(int64_t tokens, int64_t cols) = nullptr;
  void (*linear)(const LinearArgs& args, Stream stream) = nullptr;
  // DeviceProbe's (kernels/device_probe.h).
  int64_t (*peak_bytes)(WeightFormat arithmetic) = nullptr;
  int64_t (*peak)(WeightFormat arithmetic, std::byte* memory, Stream stream) = nullptr;
};
LinearOps linear_ops();

}  // namespace tessera::cuda
