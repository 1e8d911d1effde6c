#pragma once

#include <bit>

#include "kernels/cuda/attention/queries.h"

namespace tessera::cuda {

// Products with tiles of floats that are loaded to registers: those of the kernel for all formats,
// and residual buffers beside codes (staged_halves.h has pages of f16). f16 is multiplied on the
// tensor cores, f32 (an arena for comparisons) one by one.
//
// f16 keys are channel-major, 16 tokens for each channel. A lane loads 16 bytes, 8 tokens of a
// channel, for each of four channels. One byte permute for each word pairs them into fragments. f16
// values are token-major; a lane loads four channels of each of four tokens. Lane (g, t) has tokens
// 8 g .. 8 g + 7 of the scores, and channels 32 block + 4 g .. + 3 of the values, as in
// code_products.h.

// Computes scores[product][i] for token 8 g + i and the lane's pair. fragment(product, chunk): as
// HalfQueries has it.
template <int kDim, int kProducts, class FragmentOf>
TESSERA_DEVICE void half_scores(const WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                FragmentOf&& fragment, float (&scores)[kProducts][8]) {
  constexpr int32_t kTile = KvPageLayout::kKeyTile;
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  const std::byte* keys = memory.places[tile.first_place + g / 2].keys;
  float sums[kProducts][4][4] = {};
  TESSERA_UNROLL_BY(2)
  for (int32_t chunk = 0; chunk < kDim / 16; ++chunk) {
    if (chunk * 16 >= tile.layout.head_dim) {
      break;
    }
    const int32_t channel = 16 * chunk + 4 * t;
    simt::Words words[4];
    TESSERA_UNROLL
    for (int32_t c = 0; c < 4; ++c) {
      words[c] = simt::load_global(keys + 2 * ((channel + c) * kTile + g % 2 * 8));
    }
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      const simt::WordPair query = fragment(product, chunk);
      TESSERA_UNROLL
      for (int32_t m = 0; m < 4; ++m) {
        const uint32_t of_keys[4] = {simt::merge_low(words[0].at[m], words[1].at[m]),
                                     simt::merge_high(words[0].at[m], words[1].at[m]),
                                     simt::merge_low(words[2].at[m], words[3].at[m]),
                                     simt::merge_high(words[2].at[m], words[3].at[m])};
        simt::mma_f16(sums[product][m], of_keys, query.at);
      }
    }
  }
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      scores[product][i] = sum_of_parts(sums[product][i / 2] + i % 2 * 2);
    }
  }
}

template <int kDim, int kProducts>
TESSERA_DEVICE void put_half_weights(WarpMemory<kDim, kProducts>& memory,
                                     const float (&weights)[kProducts][8]) {
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    simt::Words high;
    simt::Words low;
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const SplitHalf first = split_half(weights[product][2 * i]);
      const SplitHalf second = split_half(weights[product][2 * i + 1]);
      high.at[i] = simt::pack_f16(first.high, second.high);
      low.at[i] = simt::pack_f16(first.low, second.low);
    }
    simt::store_words(&memory.weights[product][2 * t][4 * g], high);
    simt::store_words(&memory.weights[product][2 * t + 1][4 * g], low);
  }
  simt::sync_warp();
}

// Computes out[product][block][i] = out * correction + the sum over the tile's tokens, for channel
// first(block) + i of Channels.
template <class Channels, int kDim, int kProducts>
TESSERA_DEVICE void add_half_values(const WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                    const float (&correction)[kProducts],
                                    float (&out)[kProducts][kDim / 32][4]) {
  static_assert(Channels::kStep == 1);
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  const int32_t head_dim = tile.layout.head_dim;
  // Places without a token may hold NaN, which a weight of 0 does not cancel.
  uint32_t seen = 0;  // a bit for each of the lane's 16 tokens
  TESSERA_UNROLL
  for (int32_t part = 0; part < Tile::kPlaces; ++part) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t token = part * KvPageLayout::kKeyTile + 2 * t + i % 2 + i / 2 * 8;
      seen |= tile.sees(token) ? 1u << (4 * part + i) : 0;
    }
  }
  TESSERA_UNROLL
  for (int32_t block = 0; block < kDim / 32; ++block) {
    if (block * 32 >= head_dim) {
      break;
    }
    // Lanes beyond head_dim compute channels that are there, which nothing reads.
    const int32_t first = Channels::template first<kDim>(block);
    const int32_t channel = first < head_dim ? first : 0;
    float sums[kProducts][2][4] = {};
    TESSERA_UNROLL_BY(2)
    for (int32_t part = 0; part < Tile::kPlaces; ++part) {
      const std::byte* values = memory.places[tile.first_place + part].values;
      uint32_t words[4][2];
      TESSERA_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t in_tile = 2 * t + i % 2 + i / 2 * 8;
        const simt::WordPair loaded =
            simt::load_global_pair(values + 2 * (in_tile * head_dim + channel));
        words[i][0] = seen >> (4 * part + i) & 1 ? loaded.at[0] : 0;
        words[i][1] = seen >> (4 * part + i) & 1 ? loaded.at[1] : 0;
      }
      TESSERA_UNROLL
      for (int32_t product = 0; product < kProducts; ++product) {
        const uint32_t weight[2] = {memory.weights[product][g][8 * part + t],
                                    memory.weights[product][g][8 * part + 4 + t]};
        TESSERA_UNROLL
        for (int32_t m = 0; m < 2; ++m) {
          const uint32_t of_values[4] = {simt::merge_low(words[0][m], words[1][m]),
                                         simt::merge_high(words[0][m], words[1][m]),
                                         simt::merge_low(words[2][m], words[3][m]),
                                         simt::merge_high(words[2][m], words[3][m])};
          simt::mma_f16(sums[product][m], of_values, weight);
        }
      }
    }
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      TESSERA_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        float& to = out[product][block][i];
        to = simt::fma(to, correction[product], sum_of_parts(sums[product][i / 2] + i % 2 * 2));
      }
    }
  }
}

// ---- f32

TESSERA_DEVICE float load_float(const float* from) {
  return std::bit_cast<float>(simt::load_global_word(from));
}

template <int kDim, int kProducts, class QueryAt>
TESSERA_DEVICE void float_scores(const WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                 int32_t pairs, float scale, QueryAt&& query,
                                 float (&scores)[kProducts][8]) {
  constexpr int32_t kTile = KvPageLayout::kKeyTile;
  const int32_t g = simt::lane() / 4;
  const auto* keys = reinterpret_cast<const float*>(memory.places[tile.first_place + g / 2].keys);
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    const int32_t pair = kPairsOfProduct * product + simt::lane() % 4;
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      float sum = 0;
      TESSERA_UNROLL_BY(1)
      for (int32_t c = 0; c < tile.layout.head_dim && pair < pairs; ++c) {
        sum = simt::fma(query(pair)[c] * scale, load_float(keys + c * kTile + g % 2 * 8 + i), sum);
      }
      scores[product][i] = sum;
    }
  }
}

template <int kDim, int kProducts>
TESSERA_DEVICE void put_float_weights(WarpMemory<kDim, kProducts>& memory,
                                      const float (&weights)[kProducts][8]) {
  static_assert(2 * WarpMemory<kDim, kProducts>::kWeightWords >= kKvGroup);
  const int32_t g = simt::lane() / 4;
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    auto* to = reinterpret_cast<float*>(memory.weights[product][2 * (simt::lane() % 4)]);
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      to[8 * g + i] = weights[product][i];
    }
  }
  simt::sync_warp();
}

template <int kDim, int kProducts>
TESSERA_DEVICE void add_float_values(const WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                     const float (&correction)[kProducts],
                                     float (&out)[kProducts][kDim / 32][4]) {
  constexpr int32_t kTile = KvPageLayout::kKeyTile;
  const int32_t head_dim = tile.layout.head_dim;
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    const auto* weights =
        reinterpret_cast<const float*>(memory.weights[product][2 * (simt::lane() % 4)]);
    TESSERA_UNROLL
    for (int32_t i = 0; i < kDim / 8; ++i) {
      out[product][i / 4][i % 4] *= correction[product];
    }
    TESSERA_UNROLL_BY(1)
    for (int32_t token = tile.begin; token < tile.end; ++token) {
      const auto* values =
          reinterpret_cast<const float*>(memory.places[tile.first_place + token / kTile].values) +
          token % kTile * head_dim;
      TESSERA_UNROLL
      for (int32_t i = 0; i < kDim / 8; ++i) {
        const int32_t channel = 32 * (i / 4) + 4 * (simt::lane() / 4) + i % 4;
        float& to = out[product][i / 4][i % 4];
        to = channel < head_dim ? simt::fma(weights[token], load_float(values + channel), to) : to;
      }
    }
  }
}

}  // namespace tessera::cuda
