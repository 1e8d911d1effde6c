#include "kernels/cpu/cpu_backend.h"

#include "base/check.h"
#include "kernels/cpu/attention/attention_ops.h"
#include "kernels/cpu/compress/compress_ops.h"
#include "kernels/cpu/experts/experts_ops.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/low_rank/low_rank_ops.h"
#include "kernels/cpu/pages/kv_ops.h"
#include "kernels/cpu/recurrence/recurrence_ops.h"
#include "kernels/cpu/rows/layer_ops.h"
#include "kernels/cpu/sampling/sampling_ops.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

void attach_thread(Stream stream) {
  ThreadPool::of(stream).pin_caller();
}

constexpr Backend kScalar{
    .name = "cpu",
    .isa = "scalar",
    .packed_weight_bytes = packed_weight_bytes,
    .pack_weight = pack_weight,
    .pack_codes = pack_codes,
    .looks_up = looks_up_rows,
    .low_rank_bytes = low_rank_bytes,
    .pack_low_rank = pack_low_rank,
    .linear_scratch_bytes = linear_scratch_bytes,
    .attention_scratch_bytes = scalar::attention_scratch_bytes,
    .kv_compress_scratch_bytes = scalar::kv_compress_scratch_bytes,
    .kv_demote_scratch_bytes = scalar::kv_demote_scratch_bytes,
    .sample_scratch_bytes = scalar::sample_scratch_bytes,
    .attach_thread = attach_thread,
    .selects_tiles = true,
    .coded_residuals = true,
    .weighs_output = true,
    .embed = scalar::embed,
    .rms_norm = scalar::rms_norm,
    .linear = scalar::linear,
    .low_rank = scalar::low_rank,
    .rope = scalar::rope,
    .silu_mul = scalar::silu_mul,
    .route = scalar::route,
    .expert_linear = scalar::expert_linear,
    .combine = scalar::combine,
    .delta_rule = scalar::delta_rule,
    .kv_resize = scalar::kv_resize,
    .kv_fork = scalar::kv_fork,
    .kv_swap_out = scalar::kv_swap_out,
    .kv_swap_in = scalar::kv_swap_in,
    .kv_share = scalar::kv_share,
    .kv_attach = scalar::kv_attach,
    .kv_own = scalar::kv_own,
    .kv_evict = scalar::kv_evict,
    .kv_demote = scalar::kv_demote,
    .kv_store = scalar::kv_store,
    .attention = scalar::attention,
    .kv_score = scalar::kv_score,
    .kv_compress = scalar::kv_compress,
    .sample = scalar::sample,
};

constexpr Backend kAvx2{
    .name = "cpu",
    .isa = "avx2",
    .packed_weight_bytes = packed_weight_bytes,
    .pack_weight = pack_weight,
    .pack_codes = pack_codes,
    .looks_up = looks_up_rows,
    .low_rank_bytes = low_rank_bytes,
    .pack_low_rank = pack_low_rank,
    .linear_scratch_bytes = linear_scratch_bytes,
    .attention_scratch_bytes = avx2::attention_scratch_bytes,
    .kv_compress_scratch_bytes = avx2::kv_compress_scratch_bytes,
    .kv_demote_scratch_bytes = avx2::kv_demote_scratch_bytes,
    .sample_scratch_bytes = scalar::sample_scratch_bytes,
    .attach_thread = attach_thread,
    .selects_tiles = true,
    .coded_residuals = true,
    .weighs_output = true,
    .embed = avx2::embed,
    .rms_norm = avx2::rms_norm,
    .linear = avx2::linear,
    .low_rank = avx2::low_rank,
    .rope = avx2::rope,
    .silu_mul = avx2::silu_mul,
    .route = avx2::route,
    .expert_linear = avx2::expert_linear,
    .combine = avx2::combine,
    .delta_rule = avx2::delta_rule,
    .kv_resize = avx2::kv_resize,
    .kv_fork = avx2::kv_fork,
    .kv_swap_out = avx2::kv_swap_out,
    .kv_swap_in = avx2::kv_swap_in,
    .kv_share = avx2::kv_share,
    .kv_attach = avx2::kv_attach,
    .kv_own = avx2::kv_own,
    .kv_evict = avx2::kv_evict,
    .kv_demote = avx2::kv_demote,
    .kv_store = avx2::kv_store,
    .attention = avx2::attention,
    .kv_score = avx2::kv_score,
    .kv_compress = avx2::kv_compress,
    .sample = avx2::sample,
};

constexpr Backend kAvx512{
    .name = "cpu",
    .isa = "avx512",
    .packed_weight_bytes = packed_weight_bytes,
    .pack_weight = pack_weight,
    .pack_codes = pack_codes,
    .looks_up = looks_up_rows,
    .low_rank_bytes = low_rank_bytes,
    .pack_low_rank = pack_low_rank,
    .linear_scratch_bytes = linear_scratch_bytes,
    .attention_scratch_bytes = avx2::attention_scratch_bytes,
    .kv_compress_scratch_bytes = avx512::kv_compress_scratch_bytes,
    .kv_demote_scratch_bytes = avx512::kv_demote_scratch_bytes,
    .sample_scratch_bytes = scalar::sample_scratch_bytes,
    .attach_thread = attach_thread,
    .selects_tiles = true,
    .coded_residuals = true,
    .weighs_output = true,
    .embed = avx512::embed,
    .rms_norm = avx512::rms_norm,
    .linear = avx512::linear,
    .low_rank = avx512::low_rank,
    .rope = avx512::rope,
    .silu_mul = avx512::silu_mul,
    .route = avx512::route,
    .expert_linear = avx512::expert_linear,
    .combine = avx512::combine,
    .delta_rule = avx512::delta_rule,
    .kv_resize = avx512::kv_resize,
    .kv_fork = avx512::kv_fork,
    .kv_swap_out = avx512::kv_swap_out,
    .kv_swap_in = avx512::kv_swap_in,
    .kv_share = avx512::kv_share,
    .kv_attach = avx512::kv_attach,
    .kv_own = avx512::kv_own,
    .kv_evict = avx512::kv_evict,
    .kv_demote = avx512::kv_demote,
    .kv_store = avx512::kv_store,
    .attention = avx512::attention,
    .kv_score = avx512::kv_score,
    .kv_compress = avx512::kv_compress,
    .sample = avx512::sample,
};

// Only attention over sparse pages and the kv_score that follows it multiply f16.
constexpr Backend kAvx512Fp16 = [] {
  Backend backend = kAvx512;
  backend.isa = "avx512_fp16";
  backend.attention = avx512_fp16::attention;
  backend.kv_score = avx512_fp16::kv_score;
  return backend;
}();

// Ops that do not multiply many numbers are bound by memory under every instruction set.
constexpr Backend kAmx = [] {
  Backend backend = kAvx512Fp16;
  backend.isa = "amx";
  backend.linear = amx::linear;
  backend.expert_linear = amx::expert_linear;
  backend.attention = amx::attention;
  return backend;
}();

}  // namespace

const Backend& cpu_backend(CpuIsa isa) {
  TESSERA_CHECK(cpu_supports(isa), "this machine cannot run the instruction set asked for");
  switch (isa) {
    case CpuIsa::scalar:
      return kScalar;
    case CpuIsa::avx2:
      return kAvx2;
    case CpuIsa::avx512:
      return kAvx512;
    case CpuIsa::avx512_fp16:
      return kAvx512Fp16;
    case CpuIsa::amx:
      return kAmx;
  }
  return kScalar;
}

}  // namespace tessera
