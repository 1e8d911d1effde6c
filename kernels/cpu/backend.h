#pragma once

#include <string_view>

#include "kernels/backend.h"

namespace tessera {

// The instruction sets the CPU backend is written for; each includes the ones before it.
//   scalar  plain loops: the oracle of every other kernel, CUDA's included
//   avx2    AVX2, FMA, F16C
//   avx512  AVX-512 F/BW/VL/DQ/VBMI, VNNI and BF16
//   avx512_fp16  AVX-512 FP16, for attention over sparse pages; all else is avx512's
//   amx     AMX-INT8 and AMX-BF16, where the system lets the process use its tile registers; CPUs
//           that have it have avx512_fp16 too, and but for weights of bf16 results have its bits
enum class CpuIsa { scalar, avx2, avx512, avx512_fp16, amx };
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512,
                                      CpuIsa::avx512_fp16, CpuIsa::amx};

std::string_view name(CpuIsa isa);

// The best this machine can run, and whether it can run a given one.
CpuIsa best_cpu_isa();
bool cpu_supports(CpuIsa isa);

// Requires: cpu_supports(isa). Ops expect Stream::handle to be a ThreadPool.
const Backend& cpu_backend(CpuIsa isa);

}  // namespace tessera
