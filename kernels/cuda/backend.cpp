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
    .kv_compress_scratch_bytes = nullptr,
    .kv_demote_scratch_bytes = nullptr,
    .attach_thread = nullptr,
    .embed = cuda::embed,
    .rms_norm = cuda::rms_norm,
    .linear = nullptr,
    .rope = cuda::rope,
    .silu_mul = cuda::silu_mul,
    .kv_resize = cuda::kv_resize,
    .kv_fork = cuda::kv_fork,
    .kv_save = nullptr,
    .kv_load = nullptr,
    .kv_share = cuda::kv_share,
    .kv_attach = cuda::kv_attach,
    .kv_drop = cuda::kv_drop,
    .kv_demote = nullptr,
    .kv_store = cuda::kv_store,
    .attention = cuda::attention,
    .kv_score = nullptr,
    .kv_compress = nullptr,
};

}  // namespace

const Backend& cuda_backend() {
  return kCuda;
}

}  // namespace tessera
