#pragma once

#include <cstddef>
#include <vector>

#include "tests/kernels/device.h"

namespace tessera {

// Plans the attention of a step whose tokens are stored, if the device's backend has that op.
// `divide_splits`: see PlanAttentionArgs.
// Returns: memory that `args.plan` names
inline std::vector<std::byte> plan_step(const Device& device, const StepLimits& limits,
                                        AttentionArgs& args, bool divide_splits = true) {
  const Backend& backend = *device.backend;
  if (backend.plan_attention == nullptr) {
    return {};
  }
  std::vector<std::byte> plan(static_cast<size_t>(backend.attention_plan_bytes(
      limits, args.pages.layers, args.pages.kv_heads, args.query_heads)));
  args.plan = plan;
  backend.plan_attention({.sequences = args.sequences,
                          .scorings = args.scorings,
                          .weights = args.weights,
                          .pages = args.pages,
                          .query_heads = args.query_heads,
                          .sliding_window = args.sliding_window,
                          .share_reads = args.share_reads,
                          .divide_splits = divide_splits,
                          .stored = true,
                          .plan = plan},
                         device.stream);
  return plan;
}

}  // namespace tessera
