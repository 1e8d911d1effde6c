#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// Sums of queries for each key channel of a KV head: KvPagesView::query_sums, and the weights that
// KvKeyScore::output_aware derives from them. All instruction sets share this code. The compiler
// vectorises it over channels, whose sums are independent.

// Adds |q| of the step's queries for every sequence whose scoring has query_sums. Each channel adds
// by position first, then by query head, so the bits do not depend on how tokens are cut into
// steps. For a prompt only the newest closed group and the open one are added, because no op reads
// others.
// Requires: args.pages.query_sums, if any sequence needs it.
void add_query_sums(const KvScoreArgs& args, Stream stream);

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

// The weights of all channels. weights: [head_dim], output.
void recent_query_weights(const KvPagesView& pages, int64_t row, int32_t tokens, float* weights);

}  // namespace tessera
