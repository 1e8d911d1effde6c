#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_backend.h"

namespace tessera {

// Input for the choice of an instruction set: registers of cpuid, and permissions of the system.
struct CpuFacts {
  uint32_t basic_ecx = 0;     // leaf 1
  uint32_t extended_ebx = 0;  // leaf 7
  uint32_t extended_ecx = 0;
  uint32_t extended_edx = 0;
  uint32_t further_eax = 0;    // leaf 7, subleaf 1
  uint32_t saved_state = 0;    // XCR0: registers that the system saves at a context switch
  bool may_use_tiles = false;  // the system granted the tile registers' data to this process
};

// Bits of extended_edx. Compilers do not agree on their names.
inline constexpr uint32_t kAmxBf16Bit = 1u << 22;
inline constexpr uint32_t kAmxTileBit = 1u << 24;
inline constexpr uint32_t kAmxInt8Bit = 1u << 25;

CpuIsa best_isa(const CpuFacts& facts);

}  // namespace tessera
