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

// What a row's keys are weighed with when `tokens` tokens are stored: the sums of the newest closed
// group and the open one, [head_dim], finite. Requires: tokens >= kKvGroup.
void window_weights(const KvPagesView& pages, int64_t row, int32_t tokens, float* weights);

}  // namespace tessera
