#pragma once

#include "kernels/backend.h"

// Ops of a mixture of experts; kernels/ops/experts.h has the contracts. The products are those of
// each instruction set's `linear`. The rest is bound by memory, so the scalar form serves all.

namespace tessera::scalar {

void route(const RouteArgs& args, Stream stream);
void combine(const CombineArgs& args, Stream stream);
void expert_linear(const ExpertLinearArgs& args, Stream stream);

}  // namespace tessera::scalar

namespace tessera::avx2 {

using scalar::combine;
using scalar::route;
void expert_linear(const ExpertLinearArgs& args, Stream stream);

}  // namespace tessera::avx2

namespace tessera::avx512 {

using scalar::combine;
using scalar::route;
void expert_linear(const ExpertLinearArgs& args, Stream stream);

}  // namespace tessera::avx512

namespace tessera::amx {

void expert_linear(const ExpertLinearArgs& args, Stream stream);

}  // namespace tessera::amx
