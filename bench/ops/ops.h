#pragma once

#include "bench/op.h"

// One function for each file of this folder that describes an op.
namespace tessera::bench {

Op embed_op();
Op rms_norm_op();
Op linear_op();
Op rope_op();
Op silu_mul_op();
Op kv_resize_op();
Op kv_fork_op();
Op kv_store_op();
Op attention_op();

}  // namespace tessera::bench
