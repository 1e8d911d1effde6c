#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/kv/query_weight.h"

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

// The weights of all channels. weights: [head_dim], output.
void recent_query_weights(const KvPagesView& pages, int64_t row, int32_t tokens, float* weights);

}  // namespace tessera
