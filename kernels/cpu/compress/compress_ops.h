#pragma once

#include "kernels/backend.h"

// Ops of this folder, one namespace for each instruction set. kernels/cpu/cpu_backend.cpp puts them
// into the Backend tables. Their contracts are in kernels/backend.h.

namespace tessera::scalar {

int64_t kv_compress_scratch_bytes(const KvPagesView& pages, Stream stream);
void kv_compress(const KvCompressArgs& args, Stream stream);
void kv_score(const KvScoreArgs& args, Stream stream);

}  // namespace tessera::scalar

namespace tessera::avx2 {

using scalar::kv_compress_scratch_bytes;

void kv_compress(const KvCompressArgs& args, Stream stream);
void kv_score(const KvScoreArgs& args, Stream stream);

}  // namespace tessera::avx2

namespace tessera::avx512 {

using scalar::kv_compress_scratch_bytes;

void kv_compress(const KvCompressArgs& args, Stream stream);
void kv_score(const KvScoreArgs& args, Stream stream);

}  // namespace tessera::avx512

namespace tessera::avx512_fp16 {

void kv_score(const KvScoreArgs& args, Stream stream);

}  // namespace tessera::avx512_fp16
