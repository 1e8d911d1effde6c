#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// The keys of 16 tokens as they are stored (KvPageLayout), in plain numbers, so that the files of an
// instruction set emit no inline function of a header.
struct KeyTile {
  const std::byte* keys = nullptr;
  const std::byte* scales = nullptr;  // f16 [16]; codes only
  const std::byte* zeros = nullptr;
  int32_t bits = 0;
  int32_t head_dim = 0;
};

inline constexpr int32_t kScoreLanes = 16;  // tokens of a tile

// Keys as floats, channel by channel: [head_dim, rounded up to 4][16]; codes without scale and zero.
struct ScoreKernels {
  void (*unpack)(const KeyTile& tile, float* keys);
  // sums[t] += 2^(q . k_t - log2_sum), or its square, for `heads` queries [heads, head_dim] which
  // were multiplied by scale * log2(e). query_sums: the sum of each one's channels.
  struct Queries {
    const float* floats = nullptr;  // [heads, stride]
    const float* sums = nullptr;
    const float* log2_sums = nullptr;
    int32_t heads = 0;
    int32_t stride = 0;
    bool squares = false;
  };
  void (*add)(const KeyTile& tile, const float* keys, const Queries& queries, float* sums);
};

namespace scalar {
extern const ScoreKernels kScoreKernels;
}
namespace avx2 {
extern const ScoreKernels kScoreKernels;
}
namespace avx512 {
extern const ScoreKernels kScoreKernels;
}

}  // namespace tessera
