#include "bench/ops/ops.h"

namespace tessera::bench {

std::span<const Op> all_ops() {
  static const Op ops[] = {embed_op(),   rms_norm_op(), linear_op(),
                           rope_op(),    silu_mul_op(), kv_resize_op(),
                           kv_fork_op(), kv_store_op(), attention_op()};
  return ops;
}

}  // namespace tessera::bench
