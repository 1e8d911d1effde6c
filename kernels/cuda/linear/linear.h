#pragma once

#include "kernels/backend.h"

namespace tessera::cuda {

// Ops on weights. Their kernels are those of cuBLASLt (cublas.cpp), which the emulation cannot run.
// A build therefore has one of three versions: cublas.cpp; none.cpp if the build machine has no
// cuBLAS; or, in tests over the emulation, the CPU's ops (tests/kernels/cuda/emulator/). In
// none.cpp all pointers are null. All versions have rounded activations in one place of the scratch
// (activations.h).
struct LinearOps {
  int64_t (*packed_weight_bytes)(WeightFormat format, int64_t rows, int64_t cols) = nullptr;
  void (*pack_weight)(MatrixView<const float> source, int64_t first_row,
                      const PackedWeight& weight) = nullptr;
  int64_t (*linear_scratch_bytes)(int64_t tokens, int64_t cols) = nullptr;
  void (*linear)(const LinearArgs& args, Stream stream) = nullptr;
  // multiply_bytes and multiply of DeviceProbe (kernels/device_probe.h).
  int64_t (*peak_bytes)(WeightFormat arithmetic) = nullptr;
  int64_t (*peak)(WeightFormat arithmetic, std::byte* memory, Stream stream) = nullptr;
};
LinearOps linear_ops();

// Returns: true for weights that these ops multiply; the sides of fp8 must be multiples of 16. A
// checkpoint with others is refused by name (models/weights/weights.cpp).
constexpr bool multiplies(WeightFormat format, int64_t rows, int64_t cols) {
  return format == WeightFormat::f32 || format == WeightFormat::bf16 ||
         format == WeightFormat::f16 ||
         (format == WeightFormat::fp8 && rows % 16 == 0 && cols % 16 == 0);
}

}  // namespace tessera::cuda
