#pragma once

#include "kernels/cuda/attention/code_products.h"

namespace tessera::cuda {

// Tiles of codes whose pieces are copied to stages of the warp's memory
// (WarpAttention::next_piece). A piece of keys is channels of a set of 32 tokens; one of values is
// channels of all 64. Scales and zeros come with the first piece of their tokens, to a place of
// their own. Lanes that read words of lines at once use different banks.
template <int kDim, int kKeyBits, int kValueBits>
struct CodeStages {
  static constexpr int32_t kStages = 3;
  static constexpr int32_t kMaxBytes = 2048;  // of a piece
  // kOfSet: pieces of the keys of a set. kOfValues: pieces of the values of a tile.
  static constexpr int32_t kSetBytes = 32 * kDim * kKeyBits / 8;
  static constexpr int32_t kOfSet = kSetBytes > kMaxBytes ? kSetBytes / kMaxBytes : 1;
  static constexpr int32_t kKeyPieces = 2 * kOfSet;
  static constexpr int32_t kValueBytes = kKvGroup * kDim * kValueBits / 8;
  static constexpr int32_t kOfValues = kValueBytes > kMaxBytes ? kValueBytes / kMaxBytes : 1;
  static constexpr int32_t kPieces = kKeyPieces + kOfValues;  // of a tile; keys first
  static_assert(kPieces % kStages == 0, "a piece has the same stage in each tile");
  // Bytes of 16 tokens in a piece. Values of each part are padded by two chunks of 16 bytes.
  static constexpr int32_t kKeyPart = kSetBytes / kOfSet / 2;
  static constexpr int32_t kValuePart = kValueBytes / kOfValues / Tile::kPlaces;
  static constexpr int32_t kValueStride = kValuePart + 32;
  static_assert(kKeyPart >= 512 && kValuePart % 256 == 0);

  alignas(128) std::byte of[kStages][kMaxBytes + 32 * Tile::kPlaces];
  alignas(16) f16 key_scales[2][2][32];  // of each set: scales, then zeros
  alignas(16) f16 value_scales[2][kKvGroup];

  // Begins to copy a piece. places: of the tile. All addresses are loaded first, because a load
  // between two copies takes the compiler three instructions more. Requires: all lanes call it.
  TESSERA_DEVICE void copy(int32_t piece, const TilePlace* places) {
    const int32_t half = 8 * (simt::lane() % 2);
    const int32_t zero = simt::lane() / 2 % 2;
    if (piece < kKeyPieces) {
      const int32_t set = piece / kOfSet;
      const TilePlace& place = places[2 * set + simt::lane() / 4 % 2];
      const f16* scales = place.key_scales + zero * place.zeros + half;
      copy_keys(of[piece % kStages], places + 2 * set, piece % kOfSet);
      if (piece % kOfSet == 0 && simt::lane() < 8) {
        simt::copy_ahead(&key_scales[set][0][0] + place_of_scales(32), scales);
      }
    } else {
      const TilePlace& place = places[simt::lane() / 4 % 4];
      const f16* scales = place.value_scales + zero * place.zeros + half;
      copy_values(of[piece % kStages], places, piece - kKeyPieces);
      if (piece == kKeyPieces && simt::lane() < 16) {
        simt::copy_ahead(&value_scales[0][0] + place_of_scales(kKvGroup), scales);
      }
    }
  }

  // Returns: address of the lane's words of its line `index` in a piece of keys.
  TESSERA_DEVICE static const std::byte* key_words(const std::byte* stage, int32_t index) {
    const int32_t g = simt::lane() / 4;
    const int32_t t = simt::lane() % 4;
    return stage + kKeyPart * (g / 4) + 256 * index + 16 * key_chunk(4 * t + g % 4);
  }
  // Returns: address of the lane's words of a line of the part in a piece of values.
  TESSERA_DEVICE static const std::byte* value_words(const std::byte* stage, int32_t part,
                                                     int32_t line) {
    return stage + kValueStride * part + 64 * line + 16 * (simt::lane() / 4 % 4);
  }
  TESSERA_DEVICE TokenScales key_scales_of(int32_t set) const {
    const int32_t first = 4 * (simt::lane() / 4);
    return {four(&key_scales[set][0][first]), four(&key_scales[set][1][first])};
  }
  TESSERA_DEVICE TokenScales value_scales_of(int32_t set) const {
    const int32_t first = 32 * set + 4 * (simt::lane() / 4);
    return {four(&value_scales[0][first]), four(&value_scales[1][first])};
  }

 private:
  TESSERA_DEVICE static void copy_keys(std::byte* to, const TilePlace* places, int32_t index) {
    const std::byte* from[2];
    TESSERA_UNROLL
    for (int32_t part = 0; part < 2; ++part) {
      from[part] = places[part].keys + kKeyPart * index + 16 * simt::lane();
    }
    to += 16 * key_chunk(simt::lane());
    TESSERA_UNROLL
    for (int32_t at = 0; at < 2 * kKeyPart; at += 512) {
      simt::copy_ahead(to + at, from[at / kKeyPart] + at % kKeyPart);
    }
  }
  TESSERA_DEVICE static void copy_values(std::byte* to, const TilePlace* places, int32_t index) {
    constexpr int32_t kChunks = kValuePart / 16;
    constexpr int32_t kParts = simt::kWarp / kChunks;  // that the lanes copy at once
    const std::byte* from[Tile::kPlaces];
    TESSERA_UNROLL
    for (int32_t part = 0; part < Tile::kPlaces; part += kParts) {
      from[part] = places[part + simt::lane() / kChunks].values + kValuePart * index +
                   16 * (simt::lane() % kChunks);
    }
    to += kValueStride * (simt::lane() / kChunks) + 16 * (simt::lane() % kChunks);
    TESSERA_UNROLL
    for (int32_t part = 0; part < Tile::kPlaces; part += kParts) {
      simt::copy_ahead(to + kValueStride * part, from[part]);
    }
  }
  // Place of 8 scales, or zeros, that the lane copies. `tokens`: of a row of scales.
  TESSERA_DEVICE static int32_t place_of_scales(int32_t tokens) {
    const int32_t lane = simt::lane();
    return lane / 2 % 2 * tokens + 16 * (lane / 4) + 8 * (lane % 2);
  }
  TESSERA_DEVICE static FourScales four(const f16* from) {
    return FourScales(simt::load_pair(from));
  }
  // Place of a chunk of 16 bytes among the 32 of 8 lines.
  TESSERA_DEVICE static int32_t key_chunk(int32_t chunk) { return chunk ^ (chunk >> 3 & 1) << 1; }
};

// Computes the scores of code_scores(), with its bits. next(piece): waits for a piece, and returns
// its stage.
template <int kKeyBits, int kDim, int kProducts, class Stages, class Next>
TESSERA_DEVICE void staged_code_scores(const CodeQueries<kDim, kProducts>& queries,
                                       const Stages& stages, Next&& next,
                                       float (&scores)[kProducts][8]) {
  constexpr int32_t kChunks = kDim / 32 / Stages::kOfSet;  // of a piece
  TESSERA_UNROLL
  for (int32_t set = 0; set < 2; ++set) {
    int32_t sums[kProducts][2][4] = {};
    TESSERA_UNROLL
    for (int32_t piece = 0; piece < Stages::kOfSet; ++piece) {
      const std::byte* stage = next(Stages::kOfSet * set + piece);
      constexpr int32_t kLines = kKeyLoads<kKeyBits, kDim> / Stages::kOfSet;  // of a lane
      TESSERA_UNROLL
      for (int32_t chunk = 0; chunk < kChunks; ++chunk) {
        add_key_chunk<kKeyBits>(
            queries, kChunks * piece + chunk,
            [&](int32_t line) {
              return simt::load_words(Stages::key_words(stage, line - kLines * piece));
            },
            sums);
      }
    }
    scores_of_sums(queries, set, sums, stages.key_scales_of(set), scores);
  }
}

// Computes the sums of add_code_values(), with its bits.
// Requires: of the pieces of values, next() was called for the first alone; `first` is its stage.
template <int kValueBits, int kDim, int kProducts, class Stages, class Next>
TESSERA_DEVICE void add_staged_code_values(const WarpMemory<kDim, kProducts>& memory,
                                           const std::byte* first, Next&& next,
                                           const CodeWeights<kProducts>& weights,
                                           const float (&correction)[kProducts],
                                           float (&out)[kProducts][kDim / 32][4]) {
  constexpr int32_t kBlocks = kDim / 32 / Stages::kOfValues;  // of a piece
  const std::byte* stage = first;
  TESSERA_UNROLL
  for (int32_t block = 0; block < kDim / 32; ++block) {
    if (block > 0 && block % kBlocks == 0) {
      stage = next(Stages::kKeyPieces + block / kBlocks);
    }
    int32_t sums[kProducts][2][4] = {};
    TESSERA_UNROLL
    for (int32_t chunk = 0; chunk < 2; ++chunk) {
      constexpr int32_t kLines = Stages::kValuePart / 64;
      add_value_chunk<kValueBits>(
          memory, 2 * block + simt::lane() / 16, chunk,
          [&](int32_t part, int32_t line) {
            return simt::load_words(
                Stages::value_words(stage, part, line - kLines * (block / kBlocks)));
          },
          sums);
    }
    add_value_sums(block, sums, weights, correction, out);
  }
}

}  // namespace tessera::cuda
