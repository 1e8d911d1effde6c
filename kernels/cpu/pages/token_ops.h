#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/pages/kv_tile.h"

namespace tessera {

// Location of a token of one KV head: a page of some layout (not owned) and an index in it.
struct TokenPlace {
  std::byte* page = nullptr;
  int32_t token = 0;  // index in the page
};

inline constexpr size_t kMaxMoves = 64;  // in one call of TokenOps::copy

struct TokenMove {
  TokenPlace from;
  TokenPlace to;
};

// Token ops of an instruction set, for kv_compress, kv_demote, and the tokens that kv_store appends
// behind theirs. They work token by token, because victims can be anywhere. Results equal
// kernels/cpu/pages/page_codec.h bit for bit.
struct TokenOps {
  int32_t head_dim_multiple;  // head_dim must be a multiple; otherwise the scalar ops serve it
  // Copies the bytes of tokens unchanged; other tokens are not touched. All pages are of `shape`.
  // Many tokens are copied at a time, because tokens of one tile share cache lines, and only the
  // first one waits for them.
  // Requires: at most kMaxMoves moves; no target is the source of another move.
  void (*copy)(const TileShape& shape, std::span<const TokenMove> moves);
  // Encodes a token of a page of `high` again as a token of a page of `low`, of any other format.
  // It becomes the last token of that page. The first token of a tile clears the rest of the tile.
  // key_weights: [head_dim], or null for 1, for a sparse `low`. Magnitudes of a key are multiplied
  // by them to choose the kept channels.
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
