#pragma once

#include "kernels/backend.h"

// Ops of the CUDA backend; kernels/backend.h states their contracts. Views, pools and pointers name
// device memory. Spans of a step's plan (tokens, positions, sequences, growths ...) are host
// memory, read before the call returns. Unless stated otherwise, ops are launched and not waited
// for.

namespace tessera::cuda {

const DeviceMemory& device_memory();
void attach_thread(Stream stream);
std::unique_ptr<Recording> record(const RecordArgs& args, Stream stream);

void embed(const EmbedArgs& args, Stream stream);
void rms_norm(const RmsNormArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void silu_mul(const SiluMulArgs& args, Stream stream);

void kv_resize(const KvResizeArgs& args, Stream stream);
// Requires: no fork's source is the target of another fork in the same call, because all rows are
// copied at once.
void kv_fork(const KvForkArgs& args, Stream stream);
void kv_share(const KvShareArgs& args, Stream stream);
void kv_attach(const KvAttachArgs& args, Stream stream);
void kv_own(const KvOwnArgs& args, Stream stream);
void kv_evict(const KvEvictArgs& args, Stream stream);
int64_t kv_demote_scratch_bytes(const KvPagesView& pages, Stream stream);
void kv_demote(const KvDemoteArgs& args, Stream stream);
// A snapshot is host memory, so these two wait for the stream.
void kv_swap_out(const KvSnapshotArgs& args, Stream stream);
void kv_swap_in(const KvSnapshotArgs& args, Stream stream);
void kv_store(const KvStoreArgs& args, Stream stream);

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim);
int64_t attention_plan_bytes(const StepLimits& limits, int32_t layers, int32_t kv_heads,
                             int32_t query_heads);
void plan_attention(const PlanAttentionArgs& args, Stream stream);
void attention(const AttentionArgs& args, Stream stream);
void kv_score(const KvScoreArgs& args, Stream stream);
int64_t kv_compress_scratch_bytes(const KvPagesView& pages, Stream stream);
// Waits for the stream, because its results are host memory.
void kv_compress(const KvCompressArgs& args, Stream stream);

int64_t sample_scratch_bytes(const SampleLimits& limits, Stream stream);
void sample(const SampleArgs& args, Stream stream);

}  // namespace tessera::cuda
