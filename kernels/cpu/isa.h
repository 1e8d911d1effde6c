#pragma once

#include <cstdint>

#include "kernels/cpu/backend.h"

namespace tessera {

// What the choice of instruction set depends on: registers of cpuid, and what the system allows.
struct CpuFacts {
  uint32_t basic_ecx = 0;     // leaf 1
  uint32_t extended_ebx = 0;  // leaf 7
  uint32_t extended_ecx = 0;
  uint32_t extended_edx = 0;
  uint32_t further_eax = 0;    // leaf 7, subleaf 1
  uint32_t saved_state = 0;    // XCR0: what the system saves at a context switch
  bool may_use_tiles = false;  // the system gave this process the tile registers' data
};

// Clang 14 knows AVX512-FP16's intrinsics only in files that are compiled for it from end to end,
// which would let their inline functions out with its instructions in them. So what it builds, for
// fuzzing and clang-tidy, ends at avx512.
#ifndef __clang__
#define TESSERA_COMPILES_FP16
#endif

// Of extended_edx: compilers do not agree on their names.
inline constexpr uint32_t kAmxBf16Bit = 1u << 22;
inline constexpr uint32_t kAmxTileBit = 1u << 24;
inline constexpr uint32_t kAmxInt8Bit = 1u << 25;

CpuIsa best_isa(const CpuFacts& facts);

}  // namespace tessera
