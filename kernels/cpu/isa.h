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

CpuIsa best_isa(const CpuFacts& facts);

}  // namespace tessera
