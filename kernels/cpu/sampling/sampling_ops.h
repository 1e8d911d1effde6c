#pragma once

#include "kernels/backend.h"

// Sampling ops. kernels/backend.h has their contracts, kernels/ops/sampling.h the definition of
// sampling.

namespace tessera::scalar {

int64_t sample_scratch_bytes(const SampleLimits& limits, Stream stream);
void sample(const SampleArgs& args, Stream stream);

}  // namespace tessera::scalar

namespace tessera::avx2 {

void sample(const SampleArgs& args, Stream stream);

}  // namespace tessera::avx2

namespace tessera::avx512 {

void sample(const SampleArgs& args, Stream stream);

}  // namespace tessera::avx512
