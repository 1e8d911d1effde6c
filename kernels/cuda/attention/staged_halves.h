#pragma once

#include "kernels/cuda/attention/float_products.h"

namespace tessera::cuda {

// Tiles of f16 whose pieces are copied to stages of the warp's memory (WarpAttention::next_piece).
// A piece is 64 channels of the keys (values) of 16 tokens. Pages have tokens (channels) in rows,
// and fragments have them in columns: load_transposed() turns them, without permutes. Chunks of 16
// bytes change places within each 512 (128) bytes, so that the rows of a matrix are in different
// banks.
template <int kDim>
struct HalfStages {
  static constexpr int32_t kStages = 4;
  static constexpr int32_t kOfPart = kDim / 64;  // pieces of a part's keys, or values
  static constexpr int32_t kKeyPieces = Tile::kPlaces * kOfPart;
  static constexpr int32_t kPieces = 2 * kKeyPieces;  // of a tile; keys first
  static_assert(kPieces % kStages == 0, "a piece has the same stage in each tile");

  alignas(128) std::byte of[kStages][2048];

  // Part of a piece, and its first channel. Keys go part by part, values by 64 channels.
  TESSERA_DEVICE static int32_t part(int32_t piece) {
    return piece < kKeyPieces ? piece / kOfPart : (piece - kKeyPieces) % Tile::kPlaces;
  }
  TESSERA_DEVICE static int32_t channel(int32_t piece) {
    return 64 * (piece < kKeyPieces ? piece % kOfPart : (piece - kKeyPieces) / Tile::kPlaces);
  }

  // Begins to copy a piece. places: of the tile. Requires: all lanes call it.
  TESSERA_DEVICE void copy(int32_t piece, const TilePlace* places) {
    constexpr int32_t kTile = KvPageLayout::kKeyTile;
    const int32_t lane = simt::lane();
    std::byte* to = of[piece % kStages];
    if (piece < kKeyPieces) {  // [64][16]
      const std::byte* from = places[part(piece)].keys + 2 * kTile * channel(piece) + 16 * lane;
      to += 16 * key_chunk(lane);
      TESSERA_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        simt::copy_ahead(to + 512 * i, from + 512 * i);
      }
      return;
    }
    // [16][64]: a lane copies a chunk of every fourth token.
    const std::byte* from =
        places[part(piece)].values + 2 * (kDim * (lane / 8) + channel(piece)) + 16 * (lane % 8);
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t token = 4 * i + lane / 8;
      simt::copy_ahead(to + 128 * token + 16 * value_chunk(token, lane % 8), from + 8 * kDim * i);
    }
  }

  // Returns: address of the row that the lane names for the keys of 16 channels. Rows g and g + 8
  // of the fragment are those tokens of the part; its channels have the order of half_scores().
  TESSERA_DEVICE static const std::byte* key_row(const std::byte* stage, int32_t chunk) {
    const int32_t matrix = simt::lane() / 8;
    const int32_t row = simt::lane() % 8;
    const int32_t channel = 4 * (row / 2) + row % 2 + matrix / 2 * 2;
    return stage + 512 * chunk + 16 * key_chunk(2 * channel + matrix % 2);
  }
  // Returns: the same for the values of 16 channels.
  TESSERA_DEVICE static const std::byte* value_row(const std::byte* stage, int32_t block) {
    const int32_t matrix = simt::lane() / 8;
    const int32_t token = matrix / 2 * 8 + simt::lane() % 8;
    return stage + 128 * token + 16 * value_chunk(token, 2 * block + matrix % 2);
  }

  // Zeroes the values of tokens that no pair sees. They may be NaN, which a weight of 0 does not
  // cancel. Requires: all lanes call it.
  TESSERA_DEVICE void clear_unseen(int32_t piece, const Tile& tile) {
    const int32_t token = simt::lane() / 2;
    if (!tile.sees(KvPageLayout::kKeyTile * part(piece) + token)) {
      std::byte* to = of[piece % kStages] + 64 * simt::lane();
      for (int32_t i = 0; i < 4; ++i) {
        simt::store_words(to + 16 * i, {});
      }
    }
    simt::sync_warp();
  }

 private:
  // Place of a chunk of 16 bytes among the 32 of 16 channels, or among the 8 of a token.
  TESSERA_DEVICE static int32_t key_chunk(int32_t chunk) {
    return chunk ^ (chunk >> 3 & 1) ^ (chunk >> 4 & 1) << 2;
  }
  TESSERA_DEVICE static int32_t value_chunk(int32_t token, int32_t chunk) {
    return chunk ^ (token & 7);
  }
};

// Computes the scores of half_scores(), with its bits. queries: fragments of HalfQueries.
// next(piece): waits for a piece, and returns its stage.
template <int kDim, int kProducts, class Next>
TESSERA_DEVICE void staged_half_scores(WarpMemory<kDim, kProducts>& memory,
                                       const simt::WordPair (&queries)[kProducts][kDim / 16],
                                       Next&& next, float (&scores)[kProducts][8]) {
  using Stages = HalfStages<kDim>;
  const int32_t g = simt::lane() / 4;
  float sums[kProducts][4];
  TESSERA_UNROLL
  for (int32_t piece = 0; piece < Stages::kKeyPieces; ++piece) {
    const std::byte* stage = next(piece);
    const int32_t first = Stages::channel(piece) / 16;
    TESSERA_UNROLL
    for (int32_t chunk = 0; chunk < 4; ++chunk) {
      const simt::Words keys = simt::load_transposed(Stages::key_row(stage, chunk));
      TESSERA_UNROLL
      for (int32_t product = 0; product < kProducts; ++product) {
        TESSERA_UNROLL
        for (int32_t i = 0; i < 4 && first + chunk == 0; ++i) {
          sums[product][i] = 0;
        }
        simt::mma_f16(sums[product], keys.at, queries[product][first + chunk].at);
      }
    }
    if (first + 4 == kDim / 16) {  // lane (g, t) has tokens g and g + 8 of the part
      TESSERA_UNROLL
      for (int32_t product = 0; product < kProducts; ++product) {
        float* to = scores_in(memory, product) + KvPageLayout::kKeyTile * Stages::part(piece) + g;
        to[0] = sum_of_parts(sums[product]);
        to[8] = sum_of_parts(sums[product] + 2);
      }
    }
  }
  take_scores(memory, scores);
  simt::sync_warp();
}

// Computes the sums of add_half_values() for SteppedChannels, with its bits.
template <int kDim, int kProducts, class Next>
TESSERA_DEVICE void add_staged_half_values(const WarpMemory<kDim, kProducts>& memory, Next&& next,
                                           const float (&correction)[kProducts],
                                           float (&out)[kProducts][kDim / 32][4]) {
  using Stages = HalfStages<kDim>;
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  uint32_t weights[kProducts][Tile::kPlaces][2];
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < 2 * Tile::kPlaces; ++i) {
      weights[product][i / 2][i % 2] = memory.weights[product][g][4 * i + t];
    }
  }
  TESSERA_UNROLL
  for (int32_t channel = 0; channel < kDim; channel += 64) {
    float sums[kProducts][4][4] = {};
    TESSERA_UNROLL
    for (int32_t part = 0; part < Tile::kPlaces; ++part) {
      const std::byte* stage = next(Stages::kKeyPieces + channel / 64 * Tile::kPlaces + part);
      TESSERA_UNROLL
      for (int32_t block = 0; block < 4; ++block) {
        const simt::Words values = simt::load_transposed(Stages::value_row(stage, block));
        TESSERA_UNROLL
        for (int32_t product = 0; product < kProducts; ++product) {
          simt::mma_f16(sums[product][block], values.at, weights[product][part]);
        }
      }
    }
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      TESSERA_UNROLL
      for (int32_t i = 0; i < 8; ++i) {
        float& to = out[product][channel / 32 + i / 4][i % 4];
        to = simt::fma(to, correction[product], sum_of_parts(sums[product][i / 2] + i % 2 * 2));
      }
    }
  }
}

}  // namespace tessera::cuda
