#include <cpuid.h>

#include "kernels/cpu/backend.h"

namespace tessera {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) {
    return {};  // the leaf does not exist: no feature of it does either
  }
  return r;
}

constexpr bool has_all(uint32_t value, uint32_t mask) {
  return (value & mask) == mask;
}

// What the operating system saves at a context switch; without it, wide registers trap or rot.
uint32_t enabled_state() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

CpuIsa detect() {
  constexpr uint32_t kXmmYmm = 0x06;
  constexpr uint32_t kMasksZmm = 0xe0;
  const Registers basic = cpuid(1, 0);
  if (!has_all(basic.ecx, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) {
    return CpuIsa::scalar;
  }
  const uint32_t state = enabled_state();
  const Registers extended = cpuid(7, 0);
  if (!has_all(state, kXmmYmm) || !has_all(extended.ebx, bit_AVX2)) {
    return CpuIsa::scalar;
  }
  const bool avx512 =
      has_all(state, kMasksZmm) &&
      has_all(extended.ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) &&
      has_all(extended.ecx, bit_AVX512VBMI | bit_AVX512VBMI2 | bit_AVX512VNNI) &&
      has_all(cpuid(7, 1).eax, bit_AVX512BF16);
  if (!avx512) {
    return CpuIsa::avx2;
  }
  return has_all(extended.edx, bit_AVX512FP16) ? CpuIsa::avx512_fp16 : CpuIsa::avx512;
}

}  // namespace

std::string_view name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::scalar:
      return "scalar";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
    case CpuIsa::avx512_fp16:
      return "avx512_fp16";
  }
  return "?";
}

CpuIsa best_cpu_isa() {
  static const CpuIsa best = detect();
  return best;
}

bool cpu_supports(CpuIsa isa) {
  return isa <= best_cpu_isa();
}

}  // namespace tessera
