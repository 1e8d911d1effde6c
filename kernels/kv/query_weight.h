#pragma once

#include <cstdint>

#include "kernels/kv/kv_pool.h"

namespace tessera {

// Upper bound of a weight. |k| of any f16 times a weight stays finite for all queries of any
// checkpoint.
inline constexpr float kLargestKeyWeight = 1e30f;

// Returns: weight of one channel of a row's keys when `tokens` tokens are stored: the sums of the
// newest closed group and of the open one.
// Requires: tokens >= kKvGroup.
constexpr float recent_query_weight(const KvPagesView& pages, int64_t row, int32_t tokens,
                                    int32_t channel) {
  const int32_t open_group = tokens / kKvGroup;
  const bool any_open = tokens % kKvGroup > 0;  // otherwise these are the sums of an older group
  const float sum = pages.query_sum(row, open_group - 1)[channel] +
                    (any_open ? pages.query_sum(row, open_group)[channel] : 0.0f);
  return sum < kLargestKeyWeight ? sum : kLargestKeyWeight;
}

}  // namespace tessera
