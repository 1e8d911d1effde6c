#pragma once

#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace tessera {

inline std::vector<CpuIsa> isas_of_this_machine() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : kCpuIsas) {
    if (cpu_supports(isa)) {
      isas.push_back(isa);
    }
  }
  return isas;
}

// Returns: true if attention over sparse pages multiplies f16 (kernels/cpu/tiles/half_step.h).
inline bool multiplies_halves(const Backend& backend) {
  return backend.isa == name(CpuIsa::avx512_fp16) || backend.isa == name(CpuIsa::amx);
}

// Returns: instruction sets with an op of their own. The others use the op of one of these.
template <class Op>
std::vector<CpuIsa> isas_with_own(Op Backend::*op) {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : isas_of_this_machine()) {
    if (isas.empty() || cpu_backend(isa).*op != cpu_backend(isas.back()).*op) {
      isas.push_back(isa);
    }
  }
  return isas;
}

// Returns: instruction sets for the longest attention tests. With amx, avx512_fp16 is left out: amx
// has its code for sparse pages, and avx512 has the rest.
inline std::vector<CpuIsa> isas_of_attention() {
  std::vector<CpuIsa> isas = isas_of_this_machine();
  if (isas.back() == CpuIsa::amx) {
    isas.erase(isas.end() - 2);
  }
  return isas;
}

inline std::vector<float> random_floats(std::mt19937& random, int64_t count, float spread = 1.0f) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> floats(static_cast<size_t>(count));
  for (float& x : floats) {
    x = normal(random);
  }
  return floats;
}

}  // namespace tessera
