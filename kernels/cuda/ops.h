#pragma once

#include "kernels/backend.h"

// The ops of the CUDA backend; their contracts stand in kernels/backend.h. What a view, a pool or a
// pointer names is memory that the device reads (and writes); the spans of a step's plan (tokens,
// positions, sequences, growths ...) are host memory, read before the call returns. Launched, not
// waited for, but where that is said.

namespace tessera::cuda {

const DeviceMemory& device_memory();
void attach_thread(Stream stream);
std::unique_ptr<Recording> record(const RecordArgs& args, Stream stream);

void embed(const EmbedArgs& args, Stream stream);
void rms_norm(const RmsNormArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void silu_mul(const SiluMulArgs& args, Stream stream);

void kv_resize(const KvResizeArgs& args, Stream stream);
// A fork's source is not another fork's copy of the same call: all rows are copied at once.
void kv_fork(const KvForkArgs& args, Stream stream);
void kv_share(const KvShareArgs& args, Stream stream);
void kv_attach(const KvAttachArgs& args, Stream stream);
void kv_drop(const KvDropArgs& args, Stream stream);
int64_t kv_demote_scratch_bytes(const KvPagesView& pages, Stream stream);
void kv_demote(const KvDemoteArgs& args, Stream stream);
// An image is host memory, so these two wait.
void kv_swap_out(const KvSnapshotArgs& args, Stream stream);
void kv_swap_in(const KvSnapshotArgs& args, Stream stream);
void kv_store(const KvStoreArgs& args, Stream stream);

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim);
void attention(const AttentionArgs& args, Stream stream);
void kv_score(const KvScoreArgs& args, Stream stream);
int64_t kv_compress_scratch_bytes(const KvPagesView& pages, Stream stream);
// Its results are host memory, so it waits.
void kv_compress(const KvCompressArgs& args, Stream stream);

int64_t sample_scratch_bytes(const SampleLimits& limits, Stream stream);
void sample(const SampleArgs& args, Stream stream);

}  // namespace tessera::cuda
