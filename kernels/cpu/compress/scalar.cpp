#include "kernels/cpu/compress/tile_scores_impl.h"

namespace tessera::scalar {

const ScoreKernels kScoreKernels{unpack, add};

}  // namespace tessera::scalar
