#pragma once

#include "kernels/backend.h"

// The op of adapters and the packing of their matrices; kernels/ops/low_rank.h has the contracts.
// All instruction sets share one layout.

namespace tessera {

int64_t low_rank_bytes(const LowRankMatrix& matrix);
void pack_low_rank(MatrixView<const float> source, const LowRankMatrix& matrix);

namespace scalar {
void low_rank(const LowRankArgs& args, Stream stream);
}
namespace avx2 {
void low_rank(const LowRankArgs& args, Stream stream);
}
namespace avx512 {
void low_rank(const LowRankArgs& args, Stream stream);
}

}  // namespace tessera
