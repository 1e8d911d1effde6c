#include "kernels/cuda/cuda_backend.h"

#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/pages/served_formats.h"
#include "kernels/recording.h"

namespace tessera {
namespace {

// With the head dimensions that attention.cu serves.
bool serves_pages(KvFormat format, int32_t head_dim) {
  return cuda::serves_format(format) && head_dim % 16 == 0 && head_dim <= 128;
}

Backend make() {
  const cuda::LinearOps linear = cuda::linear_ops();
  return {
      .name = "cuda",
      .isa = "sm_80",
      .packed_weight_bytes = linear.packed_weight_bytes,
      .pack_weight = linear.pack_weight,
      .rounds_ahead = cuda::rounds,
      .linear_scratch_bytes = linear.linear_scratch_bytes,
      .attention_scratch_bytes = cuda::attention_scratch_bytes,
      .attention_plan_bytes = cuda::attention_plan_bytes,
      .kv_compress_scratch_bytes = cuda::kv_compress_scratch_bytes,
      .kv_demote_scratch_bytes = cuda::kv_demote_scratch_bytes,
      .sample_scratch_bytes = cuda::sample_scratch_bytes,
      .attach_thread = cuda::attach_thread,
      .memory = &cuda::device_memory(),
      .serves_pages = serves_pages,
      .applies_rope_in_store = true,
      .record = cuda::record,
      .embed = cuda::embed,
      .rms_norm = cuda::rms_norm,
      .linear = linear.linear,
      .rope = cuda::rope,
      .silu_mul = cuda::silu_mul,
      .kv_resize = cuda::kv_resize,
      .kv_fork = cuda::kv_fork,
      .kv_swap_out = cuda::kv_swap_out,
      .kv_swap_in = cuda::kv_swap_in,
      .kv_share = cuda::kv_share,
      .kv_attach = cuda::kv_attach,
      .kv_own = cuda::kv_own,
      .kv_evict = cuda::kv_evict,
      .kv_demote = cuda::kv_demote,
      .kv_store = cuda::kv_store,
      .plan_attention = cuda::plan_attention,
      .attention = cuda::attention,
      .kv_score = cuda::kv_score,
      .kv_compress = cuda::kv_compress,
      .sample = cuda::sample,
  };
}

}  // namespace

const Backend& cuda_backend() {
  static const Backend kBackend = make();
  return kBackend;
}

}  // namespace tessera
