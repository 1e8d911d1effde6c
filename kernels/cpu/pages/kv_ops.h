#pragma once

#include "kernels/backend.h"

// Ops of this folder, one namespace for each instruction set. kernels/cpu/cpu_backend.cpp puts them
// into the Backend tables. Their contracts are in kernels/backend.h. Ops that move whole pages and
// compute nothing are scalar for every instruction set.

namespace tessera::scalar {

void kv_resize(const KvResizeArgs& args, Stream stream);
void kv_fork(const KvForkArgs& args, Stream stream);
void kv_swap_out(const KvSnapshotArgs& args, Stream stream);
void kv_swap_in(const KvSnapshotArgs& args, Stream stream);
void kv_share(const KvShareArgs& args, Stream stream);
void kv_attach(const KvAttachArgs& args, Stream stream);
void kv_own(const KvOwnArgs& args, Stream stream);
void kv_evict(const KvEvictArgs& args, Stream stream);
void kv_demote(const KvDemoteArgs& args, Stream stream);
int64_t kv_demote_scratch_bytes(const KvPagesView& pages, Stream stream);
void kv_store(const KvStoreArgs& args, Stream stream);

}  // namespace tessera::scalar

namespace tessera::avx2 {

using scalar::kv_attach;
using scalar::kv_demote_scratch_bytes;
using scalar::kv_evict;
using scalar::kv_fork;
using scalar::kv_own;
using scalar::kv_resize;
using scalar::kv_share;
using scalar::kv_swap_in;
using scalar::kv_swap_out;

void kv_demote(const KvDemoteArgs& args, Stream stream);
void kv_store(const KvStoreArgs& args, Stream stream);

}  // namespace tessera::avx2

namespace tessera::avx512 {

using scalar::kv_attach;
using scalar::kv_demote_scratch_bytes;
using scalar::kv_evict;
using scalar::kv_fork;
using scalar::kv_own;
using scalar::kv_resize;
using scalar::kv_share;
using scalar::kv_swap_in;
using scalar::kv_swap_out;

void kv_demote(const KvDemoteArgs& args, Stream stream);
void kv_store(const KvStoreArgs& args, Stream stream);

}  // namespace tessera::avx512
