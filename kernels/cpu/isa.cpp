#include "kernels/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/simd/compiler.h"

namespace tessera {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) {
    return {};  // the leaf does not exist, so none of its features does
  }
  return r;
}

constexpr bool has_all(uint32_t value, uint32_t mask) {
  return (value & mask) == mask;
}

// Reads XCR0. Without its bit there, a register traps or loses its content.
uint32_t saved_state() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Linux grants the tile registers' 8 KiB on request, once for all threads of the process
// (Documentation/arch/x86/xstate.rst).
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

constexpr uint32_t kTileFeatures = kAmxTileBit | kAmxInt8Bit | kAmxBf16Bit;

CpuFacts facts_of_this_machine() {
  const Registers basic = cpuid(1, 0);
  const Registers extended = cpuid(7, 0);
  return {.basic_ecx = basic.ecx,
          .extended_ebx = extended.ebx,
          .extended_ecx = extended.ecx,
          .extended_edx = extended.edx,
          .further_eax = cpuid(7, 1).eax,
          .saved_state = has_all(basic.ecx, bit_OSXSAVE) ? saved_state() : 0,
          .may_use_tiles = has_all(extended.edx, kTileFeatures) && request_tiles()};
}

}  // namespace

CpuIsa best_isa(const CpuFacts& facts) {
  constexpr uint32_t kXmmYmm = 0x06;
  constexpr uint32_t kMasksZmm = 0xe0;
  constexpr uint32_t kTiles = 0x60000;
  if (!has_all(facts.basic_ecx, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C) ||
      !has_all(facts.saved_state, kXmmYmm) || !has_all(facts.extended_ebx, bit_AVX2)) {
    return CpuIsa::scalar;
  }
  if (!has_all(facts.saved_state, kMasksZmm) ||
      !has_all(facts.extended_ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) ||
      !has_all(facts.extended_ecx, bit_AVX512VBMI | bit_AVX512VBMI2 | bit_AVX512VNNI) ||
      !has_all(facts.further_eax, bit_AVX512BF16)) {
    return CpuIsa::avx2;
  }
#ifndef TESSERA_COMPILES_FP16
  return CpuIsa::avx512;
#endif
  if (!has_all(facts.extended_edx, bit_AVX512FP16)) {
    return CpuIsa::avx512;
  }
  const bool tiles = has_all(facts.saved_state, kTiles) &&
                     has_all(facts.extended_edx, kTileFeatures) && facts.may_use_tiles;
  return tiles ? CpuIsa::amx : CpuIsa::avx512_fp16;
}

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
    case CpuIsa::amx:
      return "amx";
  }
  return "?";
}

CpuIsa best_cpu_isa() {
#ifdef TESSERA_SCALAR_ONLY
  constexpr bool kScalarOnly = true;
#else
  constexpr bool kScalarOnly = false;
#endif
  static const CpuIsa kBest = kScalarOnly ? CpuIsa::scalar : best_isa(facts_of_this_machine());
  return kBest;
}

bool cpu_supports(CpuIsa isa) {
  return isa <= best_cpu_isa();
}

}  // namespace tessera
