#pragma once

#include "bench/op.h"

// One function per op, each defined in a file of this folder.
namespace tessera::bench {

Op embed_op();
Op rms_norm_op();
Op linear_op();
Op low_rank_op();
Op rope_op();
Op silu_mul_op();
Op route_op();
Op expert_linear_op();
Op combine_op();
Op delta_rule_op();
Op kv_resize_op();
Op kv_fork_op();
Op kv_swap_out_op();
Op kv_swap_in_op();
Op kv_share_op();
Op kv_attach_op();
Op kv_own_op();
Op kv_evict_op();
Op kv_demote_op();
Op kv_store_op();
Op plan_attention_op();
Op attention_op();
Op kv_score_op();
Op kv_compress_op();
Op sample_op();

}  // namespace tessera::bench
