#include "kernels/cuda/backend.h"

#include "kernels/cuda/ops.h"

namespace tessera {
namespace {

constexpr Backend kCuda{
    .name = "cuda",
    .isa = "sm_80",
    .packed_weight_bytes = nullptr,
    .pack_weight = nullptr,
    .linear_scratch_bytes = nullptr,
    .attention_scratch_bytes = cuda::attention_scratch_bytes,
    .kv_compress_scratch_bytes = cuda::kv_compress_scratch_bytes,
    .kv_demote_scratch_bytes = cuda::kv_demote_scratch_bytes,
    .attach_thread = nullptr,
    .embed = cuda::embed,
    .rms_norm = cuda::rms_norm,
    .linear = nullptr,
    .rope = cuda::rope,
    .silu_mul = cuda::silu_mul,
    .kv_resize = cuda::kv_resize,
    .kv_fork = cuda::kv_fork,
    .kv_save = cuda::kv_save,
    .kv_load = cuda::kv_load,
    .kv_share = cuda::kv_share,
    .kv_attach = cuda::kv_attach,
    .kv_drop = cuda::kv_drop,
    .kv_demote = cuda::kv_demote,
    .kv_store = cuda::kv_store,
    .attention = cuda::attention,
    .kv_score = cuda::kv_score,
    .kv_compress = cuda::kv_compress,
};

}  // namespace

const Backend& cuda_backend() {
  return kCuda;
}

}  // namespace tessera
