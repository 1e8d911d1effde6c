#include "kernels/cpu/compress/tile_scores_impl.h"

namespace tessera::avx2 {

const ScoreKernels kScoreKernels{unpack, add};

}  // namespace tessera::avx2
