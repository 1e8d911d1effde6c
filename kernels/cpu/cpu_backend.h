#pragma once

#include <string_view>

#include "kernels/backend.h"

namespace tessera {

// Instruction sets of the CPU backend; each includes the ones before it.
//   scalar  plain loops: the oracle of every other kernel, CUDA's included
//   avx2    AVX2, FMA, F16C
//   avx512  AVX-512 F/BW/VL/DQ/VBMI, VNNI and BF16
//   avx512_fp16  AVX-512 FP16, for attention over sparse pages; all other ops are avx512's
//   amx     AMX-INT8 and AMX-BF16, if the system lets the process use the tile registers.
//           CPUs with AMX also have avx512_fp16. Results have the bits of avx512_fp16,
//           except with bf16 weights.
enum class CpuIsa { scalar, avx2, avx512, avx512_fp16, amx };
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512,
                                      CpuIsa::avx512_fp16, CpuIsa::amx};

std::string_view name(CpuIsa isa);

// Returns: the best instruction set of this machine; true if this machine can run `isa`.
CpuIsa best_cpu_isa();
bool cpu_supports(CpuIsa isa);

// Requires: cpu_supports(isa).
// Returns: a table that stays valid until the process ends. Its ops expect Stream::handle to be a
// ThreadPool.
const Backend& cpu_backend(CpuIsa isa);

}  // namespace tessera
