#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/attention/pair_block.h"

namespace tessera {

// A token of one KV head, where it is stored: a page of some layout and a place in it.
struct TokenPlace {
  std::byte* page = nullptr;
  int32_t token = 0;  // in the page
};

inline constexpr size_t kMaxMoves = 64;  // at a time

struct TokenMove {
  TokenPlace from;
  TokenPlace to;
};

// What an instruction set brings to kv_compress, kv_demote and what kv_store appends behind them:
// token by token, because victims stand anywhere. Bit for bit as kernels/cpu/pages/page_codec.h has
// it.
struct TokenOps {
  int32_t head_dim_multiple;  // what head_dim must be, or else the scalar ones serve it
  // Copies tokens' bytes as they are, all pages being of `shape`; other tokens are left alone. Many
  // at a time, since tokens of one tile share its lines, which the first of them waits for.
  // Requires: at most kMaxMoves, and none to where another one is from.
  void (*copy)(const TileShape& shape, std::span<const TokenMove> moves);
  // Encodes a token of a page of `high` anew as one of a page of `low`, of codes or sparse, at the
  // end of what that holds: what stands behind it in its tile is cleared with the tile's first
  // token. key_weights: [head_dim], for a sparse `low`: what a key's magnitudes are multiplied with
  // to choose the channels that are kept; null: with 1.
  void (*demote)(const TileShape& high, TokenPlace from, const TileShape& low, TokenPlace to,
                 const float* key_weights);
};

namespace scalar {
extern const TokenOps kTokenOps;
}
namespace avx2 {
extern const TokenOps kTokenOps;
}
namespace avx512 {
extern const TokenOps kTokenOps;
}

}  // namespace tessera
