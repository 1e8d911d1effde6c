#pragma once

#include "kernels/backend.h"

// The ops of this folder, one namespace for each instruction set; kernels/cpu/backend.cpp puts them
// into the Backend tables. Their contracts stand in kernels/backend.h. kv_resize and kv_fork move
// whole pages and compute nothing, so the scalar ones serve every instruction set.

namespace tessera::scalar {

void kv_resize(const KvResizeArgs& args, Stream stream);
void kv_fork(const KvForkArgs& args, Stream stream);
void kv_save(const KvImageArgs& args, Stream stream);
void kv_load(const KvImageArgs& args, Stream stream);
void kv_store(const KvStoreArgs& args, Stream stream);

}  // namespace tessera::scalar

namespace tessera::avx2 {

using scalar::kv_fork;
using scalar::kv_load;
using scalar::kv_resize;
using scalar::kv_save;

void kv_store(const KvStoreArgs& args, Stream stream);

}  // namespace tessera::avx2

namespace tessera::avx512 {

using scalar::kv_fork;
using scalar::kv_load;
using scalar::kv_resize;
using scalar::kv_save;

void kv_store(const KvStoreArgs& args, Stream stream);

}  // namespace tessera::avx512
