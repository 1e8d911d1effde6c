#pragma once

#include "kernels/cuda/attention/queries.h"

namespace tessera::cuda {

// Products of codes, in their page layout, with queries and weights: integer products of the tensor
// cores.
//
// A line of a page (kernels/kv/kv_page.h) is laid out for the CPU's dot products of four bytes. It
// suits the tensor cores as well. The four elements of a 32-bit word of a line are neighbours along
// the sum, as in a lane's part of a fragment. A lane loads 16 bytes: four words, which are four
// rows of A, namely rows g and g + 8 of two products. Codes therefore reach the tensor cores by a
// 16-byte load; with fewer than 8 bits, each word also needs a shift and a mask. The order of a
// lane's words along the sum is free, as long as queries (weights) have the same order:
//
//   keys    of 32 tokens: lane (g, t) has tokens 4 g .. 4 g + 3; a product sums over 8 sub-lines of
//           4 channels, of which the lane has key_sub_line(chunk, half, t).
//   values  of 32 channels: lane (g, t) has channels 4 g .. 4 g + 3; a product sums over 8 quads of
//           4 tokens, of which the lane has value_quad(chunk, half, t).

template <int kBits>
TESSERA_DEVICE uint32_t unpacked(uint32_t word, int32_t sub_line) {
  constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x01010101u;
  return kBits == 8 ? word : word >> (sub_line * kBits) & kMask;
}

// Line of a lane's sub-line in a chunk of 32 channels. 8 / bits sub-lines share a line.
template <int kBits>
constexpr int32_t key_line(int32_t chunk, int32_t half, int32_t t) {
  return kBits == 8 ? 8 * chunk + 4 * half + t : kBits == 4 ? 4 * chunk + t : 4 * (chunk / 2) + t;
}
template <int kBits>
constexpr int32_t key_part(int32_t chunk, int32_t half) {  // index of the sub-line in its line
  return kBits == 8 ? 0 : kBits == 4 ? half : 2 * (chunk % 2) + half;
}
template <int kBits>
constexpr int32_t key_sub_line(int32_t chunk, int32_t half, int32_t t) {
  return key_line<kBits>(chunk, half, t) * (8 / kBits) + key_part<kBits>(chunk, half);
}

// Returns: index of the lane's quad among the 16 quads of a tile of 64 tokens.
template <int kBits>
constexpr int32_t value_quad(int32_t chunk, int32_t half, int32_t t) {
  return kBits == 8   ? 8 * chunk + 4 * half + t
         : kBits == 4 ? 8 * chunk + 2 * t + half
                      : 4 * t + 2 * chunk + half;
}

// Number of 16-byte loads that bring a lane its keys of 16 tokens.
template <int kBits, int kDim>
inline constexpr int32_t kKeyLoads = kDim* kBits / 128;

// Computes scores[product][i] for the lane's pair and its 8 tokens: 32 (i / 4) + 4 g + i % 4.
// Scores of tokens that no pair sees are any number.
template <int kBits, int kDim, int kProducts>
TESSERA_DEVICE void code_scores(const CodeWarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                float (&scores)[kProducts][8]) {
  constexpr int32_t kLoads = kKeyLoads<kBits, kDim>;
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  const int32_t lines = static_cast<int32_t>(tile.layout.key_tile_bytes()) / 64;
  TESSERA_UNROLL
  for (int32_t set = 0; set < 2; ++set) {
    const TilePlace place = memory.places[tile.first_place + 2 * set + g / 4];
    // Lines beyond head_dim are replaced by the last one: their channels of the queries are 0.
    simt::Words lines_of_lane[kLoads];
    TESSERA_UNROLL
    for (int32_t i = 0; i < kLoads; ++i) {
      const int32_t line = 4 * i + t < lines ? 4 * i + t : lines - 1;
      lines_of_lane[i] = simt::load_global(place.keys + 64 * line + 16 * (g % 4));
    }
    const FourScales scales(place.key_scales + 4 * (g % 4));
    const FourScales zeros(place.key_scales + 4 * (g % 4) + place.zeros);
    int32_t sums[kProducts][2][4] = {};
    TESSERA_UNROLL
    for (int32_t chunk = 0; chunk < kDim / 32; ++chunk) {
      simt::Words words[2];
      TESSERA_UNROLL
      for (int32_t half = 0; half < 2; ++half) {
        words[half] = lines_of_lane[key_line<kBits>(chunk, half, 0) / 4];
        TESSERA_UNROLL
        for (int32_t i = 0; i < 4; ++i) {
          words[half].at[i] = unpacked<kBits>(words[half].at[i], key_part<kBits>(chunk, half));
        }
      }
      TESSERA_UNROLL
      for (int32_t product = 0; product < kProducts; ++product) {
        uint32_t query[2];
        TESSERA_UNROLL
        for (int32_t half = 0; half < 2; ++half) {
          query[half] = *reinterpret_cast<const uint32_t*>(
              &memory.codes[8 * product + g][4 * key_sub_line<kBits>(chunk, half, t)]);
        }
        TESSERA_UNROLL
        for (int32_t m = 0; m < 2; ++m) {
          const uint32_t keys[4] = {words[0].at[2 * m], words[0].at[2 * m + 1], words[1].at[2 * m],
                                    words[1].at[2 * m + 1]};
          simt::mma_u8s8(sums[product][m], keys, query);
        }
      }
    }
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      const auto query = memory.queries[kPairsOfProduct * product + t];
      TESSERA_UNROLL
      for (int32_t i = 0; i < 4; ++i) {  // the lane's tokens in this set
        const int32_t dot =
            256 * sums[product][i / 2][i % 2 * 2] + sums[product][i / 2][i % 2 * 2 + 1];
        scores[product][4 * set + i] =
            simt::fma(query.sum, zeros.of[i], static_cast<float>(dot) * query.step * scales.of[i]);
      }
    }
  }
}

// Scales of a pair's integer weights, and its sum over zeros.
template <int kProducts>
struct CodeWeights {
  float step[kProducts];   // scale of the integer weights
  float zeros[kProducts];  // sum of weight * zero over the lane's tokens
};
// Writes a pair's weights times the values' scales, as integers, to the warp's memory.
template <int kDim, int kProducts>
TESSERA_DEVICE CodeWeights<kProducts> put_code_weights(WarpMemory<kDim, kProducts>& memory,
                                                       const Tile& tile,
                                                       const float (&weights)[kProducts][8]) {
  const int32_t lane = simt::not_kept(simt::lane());  // registers are scarce
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  float scales[8];
  float zeros[8];
  TESSERA_UNROLL
  for (int32_t set = 0; set < 2; ++set) {
    const TilePlace& place = memory.places[tile.first_place + 2 * set + g / 4];
    const f16* from = place.value_scales + 4 * (g % 4);
    const FourScales of_set(from);
    const FourScales zeros_of_set(from + place.zeros);
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      scales[4 * set + i] = of_set.of[i];
      zeros[4 * set + i] = zeros_of_set.of[i];
    }
  }
  CodeWeights<kProducts> result = {};
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    float scaled[8];
    float largest = kMinLargest;
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      // Places without a token may hold any scale; their weight is 0.
      const bool seen = weights[product][i] > 0;
      scaled[i] = seen ? weights[product][i] * scales[i] : 0.0f;
      result.zeros[product] = seen ? simt::fma(weights[product][i], zeros[i], result.zeros[product])
                                   : result.zeros[product];
      largest = simt::max(largest, scaled[i]);
    }
    TESSERA_UNROLL
    for (int32_t mask = 4; mask < simt::kWarp; mask *= 2) {
      largest = simt::max(largest, simt::shuffle_xor(largest, mask));
    }
    result.step[product] = largest / kCodeRange;
    const float inverse = kCodeRange / largest;
    uint32_t high[2] = {};
    uint32_t low[2] = {};
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t code = simt::round(scaled[i] * inverse);
      high[i / 4] |= (static_cast<uint32_t>(high_byte(code)) & 255u) << (8 * (i % 4));
      low[i / 4] |= (static_cast<uint32_t>(low_byte(code)) & 255u) << (8 * (i % 4));
    }
    TESSERA_UNROLL
    for (int32_t set = 0; set < 2; ++set) {
      memory.weights[product][2 * t][8 * set + g] = high[set];
      memory.weights[product][2 * t + 1][8 * set + g] = low[set];
    }
  }
  simt::sync_warp();
  return result;
}

// Returns: words of a lane's four channels for one half of a chunk of 32 tokens. `block`: block of
// 16 channels. `channels`: first of the four channels in the block.
template <int kBits>
TESSERA_DEVICE simt::Words value_words(const TilePlace* places, int32_t block, int32_t channels,
                                       int32_t chunk, int32_t half, int32_t t) {
  const int32_t quad = value_quad<kBits>(chunk, half, t);
  const int32_t sub_line = 4 * block + quad % 4;
  simt::Words words =
      simt::load_global(places[quad / 4].values + sub_line / (8 / kBits) * 64 + 4 * channels);
  TESSERA_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    words.at[i] = unpacked<kBits>(words.at[i], sub_line % (8 / kBits));
  }
  return words;
}

// Computes out[product][block][i] = out * correction + the sum over the tile's tokens, for channel
// 32 block + 4 g + i and the lane's pair. The values' zeros are not included.
template <int kBits, int kDim, int kProducts>
TESSERA_DEVICE void add_code_values(const WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                    const CodeWeights<kProducts>& weights,
                                    const float (&correction)[kProducts],
                                    float (&out)[kProducts][kDim / 32][4]) {
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  TESSERA_UNROLL
  for (int32_t block = 0; block < kDim / 32; ++block) {
    if (block * 32 >= tile.layout.head_dim) {
      break;
    }
    // head_dim is a multiple of 16, so half of the lanes may be beyond the last channel. They
    // compute the channels of a block that is there, which nothing reads.
    const int32_t last = tile.layout.head_dim / 16 - 1;
    const int32_t of_lane = 2 * block + g / 4 < last ? 2 * block + g / 4 : last;
    int32_t sums[kProducts][2][4] = {};
    TESSERA_UNROLL
    for (int32_t chunk = 0; chunk < 2; ++chunk) {
      simt::Words words[2];
      TESSERA_UNROLL
      for (int32_t half = 0; half < 2; ++half) {
        words[half] = value_words<kBits>(memory.places + tile.first_place, of_lane, 4 * (g % 4),
                                         chunk, half, t);
      }
      TESSERA_UNROLL
      for (int32_t product = 0; product < kProducts; ++product) {
        const uint32_t weight[2] = {memory.weights[product][g][value_quad<kBits>(chunk, 0, t)],
                                    memory.weights[product][g][value_quad<kBits>(chunk, 1, t)]};
        TESSERA_UNROLL
        for (int32_t m = 0; m < 2; ++m) {
          const uint32_t values[4] = {words[0].at[2 * m], words[0].at[2 * m + 1],
                                      words[1].at[2 * m], words[1].at[2 * m + 1]};
          simt::mma_u8s8(sums[product][m], values, weight);
        }
      }
    }
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      TESSERA_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t dot =
            256 * sums[product][i / 2][i % 2 * 2] + sums[product][i / 2][i % 2 * 2 + 1];
        float& to = out[product][block][i];
        to = simt::fma(to, correction[product], static_cast<float>(dot) * weights.step[product]);
      }
    }
  }
}

}  // namespace tessera::cuda
