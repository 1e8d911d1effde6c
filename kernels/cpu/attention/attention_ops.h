#pragma once

#include "kernels/backend.h"

// Attention, one namespace for each instruction set. kernels/cpu/cpu_backend.cpp puts the ops into
// the Backend tables, and kernels/ops/attention.h has their contract.

namespace tessera::scalar {

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim);

void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::scalar

namespace tessera::avx2 {

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim);

void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::avx2

namespace tessera::avx512 {

void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::avx512

namespace tessera::avx512_fp16 {

void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::avx512_fp16

namespace tessera::amx {

void attention(const AttentionArgs& args, Stream stream);

}  // namespace tessera::amx
