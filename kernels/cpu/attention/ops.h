#pragma once

#include "kernels/backend.h"

// Attention ops and row ops, one namespace for each instruction set. kernels/cpu/backend.cpp puts
// them into the Backend tables, and kernels/backend.h has their contracts. embed copies whole words
// and computes nothing, so the scalar one serves every instruction set.

namespace tessera::scalar {

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim);

void embed(const EmbedArgs& args, Stream stream);
void rms_norm(const RmsNormArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void silu_mul(const SiluMulArgs& args, Stream stream);
void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::scalar

namespace tessera::avx2 {

using scalar::embed;

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim);

void rms_norm(const RmsNormArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void silu_mul(const SiluMulArgs& args, Stream stream);
void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::avx2

namespace tessera::avx512 {

using scalar::embed;

void rms_norm(const RmsNormArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void silu_mul(const SiluMulArgs& args, Stream stream);
void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::avx512

namespace tessera::avx512_fp16 {

void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::avx512_fp16

namespace tessera::amx {

void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::amx
