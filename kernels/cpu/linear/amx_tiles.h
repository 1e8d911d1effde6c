#pragma once

#include <utility>

#include "kernels/cpu/linear/simd_avx512.h"
#include "kernels/cpu/simd/tile_registers.h"

// Instructions of AMX, with registers as constants. For files compiled for AMX; in an anonymous
// namespace, as tile.h requires.
namespace tessera::amx {
namespace {

// Registers: sums from 0 on, then activations, then weights.
inline constexpr int kActivations = 4;
inline constexpr int kWeights = 6;

template <int kRegister>
TESSERA_INLINE void load(const std::byte* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kRegister) : "memory");
}
template <int kRegister>
TESSERA_INLINE void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kRegister) : "memory");
}
template <int kRegister>
TESSERA_INLINE void clear() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kRegister));
}
// Adds products of pairs of bf16.
template <int kSums, int kRows, int kOutputs>
TESSERA_INLINE void multiply_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kOutputs));
}
// Adds products of signed bytes, exactly.
template <int kSums, int kRows, int kOutputs>
TESSERA_INLINE void multiply_add_bytes() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kOutputs));
}

inline void release_tiles() {
  _tile_release();
}

// Calls f(0), f(1), ... with constants, because registers are named by constants.
template <int kCount, class F>
TESSERA_INLINE void for_each(F f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (f.template operator()<kIndex>(), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

}  // namespace
}  // namespace tessera::amx
