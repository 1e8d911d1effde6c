#pragma once

#include "kernels/backend.h"

// Row ops, one namespace for each instruction set. kernels/cpu/cpu_backend.cpp puts them into the
// Backend tables, and kernels/ops/layers.h has their contracts. embed looks up a
// row of each token and is bound by memory, so the scalar one serves every instruction set.

namespace tessera::scalar {

void embed(const EmbedArgs& args, Stream stream);
void rms_norm(const RmsNormArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void silu_mul(const SiluMulArgs& args, Stream stream);

}  // namespace tessera::scalar

namespace tessera::avx2 {

using scalar::embed;

void rms_norm(const RmsNormArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void silu_mul(const SiluMulArgs& args, Stream stream);

}  // namespace tessera::avx2

namespace tessera::avx512 {

using scalar::embed;

void rms_norm(const RmsNormArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void silu_mul(const SiluMulArgs& args, Stream stream);

}  // namespace tessera::avx512
