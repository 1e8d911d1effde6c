#include "bench/ops/ops.h"

namespace tessera::bench {

std::span<const Op> all_ops() {
  static const Op kOps[] = {
      embed_op(),          rms_norm_op(),  linear_op(),        low_rank_op(),    rope_op(),
      silu_mul_op(),       route_op(),     expert_linear_op(), combine_op(),     delta_rule_op(),
      kv_resize_op(),      kv_fork_op(),   kv_swap_out_op(),   kv_swap_in_op(),  kv_share_op(),
      kv_attach_op(),      kv_own_op(),    kv_evict_op(),      kv_demote_op(),   kv_store_op(),
      plan_attention_op(), attention_op(), kv_score_op(),      kv_compress_op(), sample_op()};
  return kOps;
}

}  // namespace tessera::bench
