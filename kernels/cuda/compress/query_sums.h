#pragma once

#include "kernels/device/stream.h"
#include "kernels/ops/attention.h"

namespace tessera::cuda {

// Adds the step's queries to KvPagesView::query_sums, for the sequences whose scoring wants them.
void add_query_sums(const KvScoreArgs& args, Stream stream);

}  // namespace tessera::cuda
