#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// What queries put on the channels of a KV head's keys: KvPagesView::query_sums, and what
// KvKeyScore::output_aware makes of them. One code for every instruction set; the compiler
// vectorises it over channels, whose sums are apart.

// Adds the step's queries of every sequence that wants sums: to a channel first by position, then
// by query head, so the bits do not depend on how tokens are cut into steps. Of a prompt only the
// newest closed group and the open one are added up, because nobody asks for others.
void add_query_sums(const KvScoreArgs& args, Stream stream);

// So that |k| of any f16 times a weight is finite, whatever a checkpoint's queries are.
inline constexpr float kLargestKeyWeight = 1e30f;

// What a row's keys are weighed with in one channel when `tokens` tokens are stored: the sums of
// the newest closed group and the open one. Requires: tokens >= kKvGroup.
constexpr float recent_query_weight(const KvPagesView& pages, int64_t row, int32_t tokens,
                                    int32_t channel) {
  const int32_t open_group = tokens / kKvGroup;
  const bool any_open = tokens % kKvGroup > 0;  // else these are the sums of a former group
  const float sum = pages.query_sum(row, open_group - 1)[channel] +
                    (any_open ? pages.query_sum(row, open_group)[channel] : 0.0f);
  return sum < kLargestKeyWeight ? sum : kLargestKeyWeight;
}

// All channels, [head_dim].
void recent_query_weights(const KvPagesView& pages, int64_t row, int32_t tokens, float* weights);

}  // namespace tessera
