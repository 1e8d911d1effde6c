#pragma once

#include "kernels/cuda/attention/float_products.h"
#include "kernels/cuda/attention/work.h"
#include "kernels/kv/sparse_layout.h"

namespace tessera::cuda {

// Products of tiles of sparse formats with queries and weights: loaded compressed, computed dense
// (MUSTAFAR, section 3). Loads of 16 bytes bring the kept channels of 16 tokens to the warp's
// memory; codes become f16, which holds them exactly. From there a lane reads a few tokens, channel
// by channel: the next kept one if the bitmap has its bit set, else 0. That builds f16 fragments in
// registers for the same products as dense f16 (float_products.h). Nothing dense is ever written to
// memory. A tile is expanded once for all pairs of a block. The scales of codes are applied to a
// token's score and weight.

// 16 tokens in a warp's memory: their kept channels, up to kDim for each token, and their bitmaps.
template <int kDim>
struct StagedTile {
  alignas(16) f16 kept[KvPageLayout::kKeyTile * (kDim + 8)];
  alignas(16) uint32_t bitmaps[KvPageLayout::kKeyTile][kDim / 32];
};

// Returns: bytes of a block's shared memory: the WarpMemory of its warps, then a StagedTile for
// each warp if a row has sparse tiles.
template <int kDim, int kProducts>
constexpr int32_t block_memory_bytes(bool sparse) {
  return kWarpsOfBlock * static_cast<int32_t>(sizeof(WarpMemory<kDim, kProducts>) +
                                              (sparse ? sizeof(StagedTile<kDim>) : 0));
}
template <int kDim, int kProducts>
TESSERA_DEVICE WarpMemory<kDim, kProducts>& warp_memory() {
  return reinterpret_cast<WarpMemory<kDim, kProducts>*>(&simt::shared<std::byte>())[simt::warp()];
}
template <int kDim, int kProducts>
TESSERA_DEVICE StagedTile<kDim>& staged_tile() {
  std::byte* behind = &simt::shared<std::byte>() + block_memory_bytes<kDim, kProducts>(false);
  return reinterpret_cast<StagedTile<kDim>*>(behind)[simt::warp()];
}

// Placement of the tokens' kept channels in the warp's memory. Lanes read neighbouring tokens at
// about the same offset. Tokens that would begin in the same banks are therefore padded by 16
// bytes.
struct Staging {
  int32_t stride;        // f16 elements from token to token
  uint32_t token_parts;  // 65536ths of a token in 16 bytes of a page, rounded up; 0: no padding

  TESSERA_DEVICE explicit Staging(const SparseSide& side)
      : stride(static_cast<int32_t>(side.kept_bytes) * 8 / side.bits), token_parts(0) {
    if (stride % 32 == 0) {  // then 16 bytes of a page belong to one token
      const auto kept_bytes = static_cast<uint32_t>(side.kept_bytes);
      stride += 8;
      token_parts = (16 * 65536 + kept_bytes - 1) / kept_bytes;
    }
  }
  // Returns: offset in f16 elements of a chunk, which is 16 bytes of a page.
  TESSERA_DEVICE int32_t place(int32_t chunk, int32_t chunk_halves) const {
    const auto token = static_cast<int32_t>(static_cast<uint32_t>(chunk) * token_parts >> 16);
    return chunk * chunk_halves + 8 * token;
  }
};

// kHalf1024 is 1024 in two f16: an integer of 8 or 4 bits in the lower byte of each adds its value.
// The other constants subtract 1024 and the bias of the codes.
inline constexpr uint32_t kHalf1024 = 0x64006400;
inline constexpr uint32_t kLessByteBias = 0xe480e480;    // -(1024 + 128)
inline constexpr uint32_t kLessNibbleBias = 0xe408e408;  // -(1024 + 8)

// Convert four codes of 8 bits (eight of 4 bits) to f16.
TESSERA_DEVICE void put_bytes(uint32_t codes, uint32_t* to) {
  codes ^= 0x80808080;
  to[0] = simt::add_f16((codes & 0xff) | (codes << 8 & 0xff0000) | kHalf1024, kLessByteBias);
  to[1] = simt::add_f16((codes >> 16 & 0xff) | (codes >> 8 & 0xff0000) | kHalf1024, kLessByteBias);
}
TESSERA_DEVICE void put_nibbles(uint32_t codes, uint32_t* to) {
  codes ^= 0x88888888;
  TESSERA_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    const uint32_t two = codes >> 8 * i;
    to[i] = simt::add_f16((two & 0xf) | (two << 12 & 0xf0000) | kHalf1024, kLessNibbleBias);
  }
}

// Loads of 16 bytes that a lane has in flight: 16 tokens of s70 take three, of s50 five.
inline constexpr int32_t kStagedLoads = 3;

// Writes a chunk of 16 bytes to the warp's memory: kept channels as f16, or a part of the bitmaps.
template <int kDim>
TESSERA_DEVICE void put_chunk(const SparseSide& side, const Staging& staging, int32_t chunk,
                              const simt::Words& words, StagedTile<kDim>& staged) {
  const auto chunks = static_cast<int32_t>(side.kept_bytes);
  if (chunk >= chunks) {
    simt::store_words(reinterpret_cast<std::byte*>(staged.bitmaps) + 16 * (chunk - chunks), words);
    return;
  }
  f16* to = staged.kept + staging.place(chunk, 128 / side.bits);
  if (side.bits == 16) {
    simt::store_words(to, words);
    return;
  }
  TESSERA_UNROLL
  for (int32_t i = 0; i < 2; ++i) {
    simt::Words halves[2];
    if (side.bits == 8) {
      put_bytes(words.at[2 * i], halves[0].at);
      put_bytes(words.at[2 * i + 1], halves[0].at + 2);
      simt::store_words(to + 8 * i, halves[0]);
    } else {
      put_nibbles(words.at[2 * i], halves[0].at);
      put_nibbles(words.at[2 * i + 1], halves[1].at);
      simt::store_words(to + 16 * i, halves[0]);
      simt::store_words(to + 16 * i + 8, halves[1]);
    }
  }
}

// Copies the 16 tokens of a tile to the warp's memory. `tile`: its keys (values). 16 tokens of n
// bytes are n chunks of 16 bytes; the same holds for their bitmaps.
template <int kDim>
TESSERA_DEVICE void stage(const SparseSide& side, const Staging& staging, const std::byte* tile,
                          StagedTile<kDim>& staged) {
  simt::sync_warp();  // the previous content has been read
  const auto chunks = static_cast<int32_t>(side.kept_bytes);
  const int32_t all = chunks + static_cast<int32_t>(side.bitmap_bytes);
  TESSERA_UNROLL_BY(1)
  for (int32_t first = 0; first < all; first += kStagedLoads * simt::kWarp) {
    simt::Words words[kStagedLoads];
    TESSERA_UNROLL
    for (int32_t i = 0; i < kStagedLoads; ++i) {  // without a test, so that all are in flight
      const int32_t chunk = first + simt::kWarp * i + simt::lane();
      words[i] = simt::load_global(tile + 16 * (chunk < all ? chunk : all - 1));
    }
    TESSERA_UNROLL
    for (int32_t i = 0; i < kStagedLoads; ++i) {
      const int32_t chunk = first + simt::kWarp * i + simt::lane();
      if (chunk < all) {
        put_chunk(side, staging, chunk, words[i], staged);
      }
    }
  }
  for (int32_t i = simt::lane(); side.bitmap_bytes == 0 && i < kDim / 2; i += simt::kWarp) {
    const int32_t channels = side.head_dim - 32 * (i % (kDim / 32));
    staged.bitmaps[i / (kDim / 32)][i % (kDim / 32)] = channels >= 32 ? 0xffffffff
                                                       : channels > 0 ? (1u << channels) - 1
                                                                      : 0;
  }
  simt::sync_warp();
}

// Reads the channels of a token in order, from some first channel on. Bit i of `bits` is set if
// channel first + i is kept.
struct ChannelStream {
  const f16* next;
  uint32_t bits;

  TESSERA_DEVICE uint32_t take(int32_t bit) {  // f16 bits, in the lower half
    uint32_t channel = 0;
    if ((bits >> bit & 1) != 0) {
      channel = next->bits;
      ++next;
    }
    return channel;
  }
  TESSERA_DEVICE uint32_t take_two(int32_t bit) {
    const uint32_t first = take(bit);
    return first | take(bit + 1) << 16;
  }
};

// Returns: channels [kDim / 4 t, kDim / 4 (t + 1)) of a token, t = lane % 4. All are 0 unless
// `seen`, because a token that no pair sees may hold any bytes.
template <int kDim>
TESSERA_DEVICE ChannelStream quarter(const StagedTile<kDim>& staged, const Staging& staging,
                                     int32_t token, bool seen) {
  ChannelStream channels{staged.kept + token * staging.stride, 0};
  TESSERA_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    const uint32_t word = staged.bitmaps[token][i * kDim / 128];
    const uint32_t bits = kDim == 128 ? word : word >> 16 * (i % 2) & 0xffff;
    channels.next += seen && i < simt::lane() % 4 ? simt::popcount(bits) : 0;
    channels.bits = seen && i == simt::lane() % 4 ? bits : channels.bits;
  }
  return channels;
}

// Computes scores[product][i] for token 8 g + i and the lane's pair, in the order of half_scores().
// Lane (g, t) reads a quarter of the channels of tokens g and g + 8 of each 16. Scores are
// rearranged through the warp's memory.
template <int kDim, int kProducts>
TESSERA_DEVICE void sparse_scores(WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                  float (&scores)[kProducts][8]) {
  constexpr int32_t kTile = KvPageLayout::kKeyTile;
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  const SparseSide side = sparse_keys(tile.layout);
  const Staging staging(side);
  StagedTile<kDim>& staged = staged_tile<kDim, kProducts>();
  const auto scores_of = [&](int32_t product) {
    return reinterpret_cast<float*>(memory.weights[product][2 * t]);
  };
  TESSERA_UNROLL_BY(1)
  for (int32_t part = 0; part < Tile::kPlaces; ++part) {
    if (!tile.sees_part(part)) {
      continue;
    }
    stage(side, staging, memory.places[part].keys, staged);
    ChannelStream channels[2];
    TESSERA_UNROLL
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t token = g + 8 * i;
      channels[i] = quarter(staged, staging, token, tile.sees(part * kTile + token));
    }
    float sums[kProducts][4] = {};
    TESSERA_UNROLL_BY(2)
    for (int32_t first = 0; first < kDim / 4; first += 4) {
      uint32_t of_keys[4];
      TESSERA_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        of_keys[i] = channels[i % 2].take_two(i / 2 * 2);
      }
      TESSERA_UNROLL
      for (int32_t i = 0; i < 2; ++i) {
        channels[i].bits >>= 4;
      }
      TESSERA_UNROLL
      for (int32_t product = 0; product < kProducts; ++product) {
        const auto* query = reinterpret_cast<const uint32_t*>(
            &memory.halves[8 * product + g][kDim / 4 * t + first]);
        const uint32_t of_query[2] = {query[0], query[1]};
        simt::mma_f16(sums[product], of_keys, of_query);
      }
    }
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      TESSERA_UNROLL
      for (int32_t i = 0; i < 2; ++i) {
        scores_of(product)[part * kTile + 8 * i + g] = sum_of_parts(sums[product] + 2 * i);
      }
    }
  }
  simt::sync_warp();
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      scores[product][i] = scores_of(product)[8 * g + i];
    }
  }
  if (side.is_codes()) {
    TESSERA_UNROLL
    for (int32_t first = 0; first < 8; first += 4) {
      const FourScales scales(memory.places[g / 2].key_scales + 8 * (g % 2) + first);
      TESSERA_UNROLL
      for (int32_t product = 0; product < kProducts; ++product) {
        TESSERA_UNROLL
        for (int32_t i = 0; i < 4; ++i) {
          scores[product][first + i] *= scales.of[i];
        }
      }
    }
  }
  simt::sync_warp();
}

// Writes a pair's weights to the warp's memory. If values are codes, weights are multiplied by the
// values' scales, then divided by their maximum, which `step` returns. f16 therefore holds them for
// any scales.
template <int kDim, int kProducts>
TESSERA_DEVICE void put_sparse_weights(WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                       float (&weights)[kProducts][8], float (&step)[kProducts]) {
  const int32_t g = simt::lane() / 4;
  const f16* scales = memory.places[g / 2].value_scales + 8 * (g % 2);
  const bool codes = tile.layout.format.value_bits <= 8;
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    step[product] = 1;
    if (!codes) {
      continue;
    }
    const FourScales of[2] = {FourScales(scales), FourScales(scales + 4)};
    float largest = kMinLargest;
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      // Places without a token may hold any scale; their weight is 0.
      float& weight = weights[product][i];
      weight = weight > 0 ? weight * of[i / 4].of[i % 4] : 0.0f;
      largest = simt::max(largest, weight);
    }
    TESSERA_UNROLL
    for (int32_t mask = 4; mask < simt::kWarp; mask *= 2) {
      largest = simt::max(largest, simt::shuffle_xor(largest, mask));
    }
    step[product] = largest;
    const float inverse = 1 / largest;
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      weights[product][i] *= inverse;
    }
  }
  put_half_weights(memory, weights);
}

// Computes out[product][block][i] = out * correction + the sum over the tile's tokens, for channel
// 32 block + 4 g + i and the lane's pair. Lane (g, t) reads these channels of tokens 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9 of each 16.
template <int kDim, int kProducts>
TESSERA_DEVICE void add_sparse_values(const WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                      const float (&step)[kProducts],
                                      const float (&correction)[kProducts],
                                      float (&out)[kProducts][kDim / 32][4]) {
  constexpr int32_t kTile = KvPageLayout::kKeyTile;
  constexpr int32_t kOwn = 4;  // a lane's tokens of each 16
  const auto own_token = [](int32_t i) { return 2 * (simt::lane() % 4) + i % 2 + i / 2 * 8; };
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  const SparseSide side = sparse_values(tile.layout);
  const Staging staging(side);
  StagedTile<kDim>& staged = staged_tile<kDim, kProducts>();
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < kDim / 8; ++i) {
      out[product][i / 4][i % 4] *= correction[product];
    }
  }
  TESSERA_UNROLL_BY(1)
  for (int32_t part = 0; part < Tile::kPlaces; ++part) {
    if (!tile.sees_part(part)) {
      continue;
    }
    stage(side, staging, memory.places[part].values, staged);
    const f16* kept[kOwn];
    TESSERA_UNROLL
    for (int32_t i = 0; i < kOwn; ++i) {
      kept[i] = staged.kept + own_token(i) * staging.stride;
    }
    TESSERA_UNROLL
    for (int32_t block = 0; block < kDim / 32; ++block) {
      if (block * 32 >= side.head_dim) {
        break;
      }
      uint32_t channels[kOwn][4];
      TESSERA_UNROLL
      for (int32_t i = 0; i < kOwn; ++i) {
        const bool seen = tile.sees(part * kTile + own_token(i));
        const uint32_t word = seen ? staged.bitmaps[own_token(i)][block] : 0;
        ChannelStream from{kept[i] + simt::popcount(word & ((1u << 4 * g) - 1)), word >> 4 * g};
        TESSERA_UNROLL
        for (int32_t c = 0; c < 4; ++c) {
          channels[i][c] = from.take(c);
        }
        kept[i] += simt::popcount(word);
      }
      TESSERA_UNROLL
      for (int32_t m = 0; m < 2; ++m) {
        const uint32_t of_values[4] = {channels[0][2 * m] | channels[1][2 * m] << 16,
                                       channels[0][2 * m + 1] | channels[1][2 * m + 1] << 16,
                                       channels[2][2 * m] | channels[3][2 * m] << 16,
                                       channels[2][2 * m + 1] | channels[3][2 * m + 1] << 16};
        TESSERA_UNROLL
        for (int32_t product = 0; product < kProducts; ++product) {
          const uint32_t weight[2] = {memory.weights[product][g][8 * part + t],
                                      memory.weights[product][g][8 * part + 4 + t]};
          float sums[4] = {};
          simt::mma_f16(sums, of_values, weight);
          TESSERA_UNROLL
          for (int32_t i = 0; i < 2; ++i) {
            float& to = out[product][block][2 * m + i];
            to = simt::fma(sum_of_parts(sums + 2 * i), step[product], to);
          }
        }
      }
    }
  }
}

}  // namespace tessera::cuda
