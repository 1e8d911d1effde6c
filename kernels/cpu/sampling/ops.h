#pragma once

#include "kernels/backend.h"

// The contract of these stands in kernels/backend.h, the definition in kernels/sampling.h.

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
