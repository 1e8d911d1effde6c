#pragma once

#include <bit>

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
//           4 tokens, of which the lane has value_quad(chunk, half, t) of value_part().

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

// Place of a lane's quad of tokens: part of 16 tokens, and quad in the part. Written without
// divisions of sums, so that the compiler sees which quads share a line.
template <int kBits>
constexpr int32_t value_part(int32_t chunk, int32_t half, int32_t t) {
  return kBits == 8 ? 2 * chunk + half : kBits == 4 ? 2 * chunk + t / 2 : t;
}
template <int kBits>
constexpr int32_t value_quad(int32_t chunk, int32_t half, int32_t t) {
  return kBits == 8 ? t : kBits == 4 ? 2 * (t % 2) + half : 2 * chunk + half;
}
// Line of the quad's sub-line in its part, for a block of 16 channels, and index of the sub-line in
// the line.
template <int kBits>
constexpr int32_t value_line(int32_t block, int32_t t) {
  return kBits == 8 ? 4 * block + t : kBits == 4 ? 2 * block + t % 2 : block / (kBits == 2 ? 1 : 2);
}
template <int kBits>
constexpr int32_t value_index(int32_t block, int32_t chunk, int32_t half) {
  return kBits == 8 ? 0 : kBits == 4 ? half : (kBits == 2 ? 0 : 4 * (block % 2)) + 2 * chunk + half;
}

// Number of 16-byte loads that bring a lane its keys of 16 tokens.
template <int kBits, int kDim>
inline constexpr int32_t kKeyLoads = kDim* kBits / 128;

// Scales and zeros of four neighbouring tokens.
struct TokenScales {
  FourScales scales;
  FourScales zeros;
};

// Adds a chunk of the keys of 32 tokens to the lane's sums. line(i): the lane's words of its line.
template <int kBits, int kDim, int kProducts, class LineAt>
TESSERA_DEVICE void add_key_chunk(const CodeQueries<kDim, kProducts>& queries, int32_t chunk,
                                  LineAt&& line, int32_t (&sums)[kProducts][2][4]) {
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  simt::Words words[2];
  TESSERA_UNROLL
  for (int32_t half = 0; half < 2; ++half) {
    words[half] = line(key_line<kBits>(chunk, half, 0) / 4);
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
          &queries.columns[8 * product + g][4 * key_sub_line<kBits>(chunk, half, t)]);
    }
    TESSERA_UNROLL
    for (int32_t m = 0; m < 2; ++m) {
      const uint32_t keys[4] = {words[0].at[2 * m], words[0].at[2 * m + 1], words[1].at[2 * m],
                                words[1].at[2 * m + 1]};
      simt::mma_u8s8(sums[product][m], keys, query);
    }
  }
}

// Returns: sum of row `i` of the lane's four, with both parts of the query (weight).
TESSERA_DEVICE float row_sum(const int32_t (&sums)[2][4], int32_t i) {
  return static_cast<float>(256 * sums[i / 2][i % 2 * 2] + sums[i / 2][i % 2 * 2 + 1]);
}

// Computes the scores of 32 tokens, scores[product][4 set + i], from their sums.
template <int kDim, int kProducts>
TESSERA_DEVICE void scores_of_sums(const CodeQueries<kDim, kProducts>& queries, int32_t set,
                                   const int32_t (&sums)[kProducts][2][4], const TokenScales& of,
                                   float (&scores)[kProducts][8]) {
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    const auto query = queries.of[kPairsOfProduct * product + simt::lane() % 4];
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {  // the lane's tokens in this set
      scores[product][4 * set + i] = simt::fma(
          query.sum, of.zeros.of[i], row_sum(sums[product], i) * query.step * of.scales.of[i]);
    }
  }
}

// Computes scores[product][i] for the lane's pair and its 8 tokens: 32 (i / 4) + 4 g + i % 4.
// Scores of tokens that no pair sees are any number.
template <int kBits, int kDim, int kProducts>
TESSERA_DEVICE void code_scores(const AnyWarpMemory<kDim, kProducts>& memory, const Tile& tile,
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
    const TokenScales of{FourScales::at(place.key_scales + 4 * (g % 4)),
                         FourScales::at(place.key_scales + 4 * (g % 4) + place.zeros)};
    int32_t sums[kProducts][2][4] = {};
    TESSERA_UNROLL
    for (int32_t chunk = 0; chunk < kDim / 32; ++chunk) {
      add_key_chunk<kBits>(
          memory.codes, chunk, [&](int32_t i) { return lines_of_lane[i]; }, sums);
    }
    scores_of_sums(memory.codes, set, sums, of, scores);
  }
}

// Scales of a pair's integer weights, and its sum over zeros.
template <int kProducts>
struct CodeWeights {
  float step[kProducts];   // scale of the integer weights
  float zeros[kProducts];  // sum of weight * zero over the lane's tokens
};
// Four integers in [-32512, 32512], x * inverse rounded, as 256 * high + low: a byte of each word.
struct CodeBytes {
  uint32_t high;
  uint32_t low;

  TESSERA_DEVICE CodeBytes(const float* x, float inverse) {
    // The last bit of the sum is worth 1, so its low 16 bits are the integer plus 128. With bit 7
    // turned the low byte is signed.
    constexpr float kUnits = 3 << 22;
    uint32_t words[4];
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      words[i] = std::bit_cast<uint32_t>(simt::fma(x[i], inverse, kUnits + 128));
    }
    const uint32_t first = simt::merge_low(words[0], words[1]);
    const uint32_t second = simt::merge_low(words[2], words[3]);
    high = simt::merge_odd(first, second);
    low = simt::merge_even(first, second) ^ 0x80808080;
  }
};

// Writes a pair's weights times the values' scales, as integers, to the warp's memory.
// scales_of(set): TokenScales of the lane's tokens in a set.
template <int kDim, int kProducts, class ScalesOf>
TESSERA_DEVICE CodeWeights<kProducts> put_code_weights(WarpMemory<kDim, kProducts>& memory,
                                                       const Tile& tile,
                                                       const float (&weights)[kProducts][8],
                                                       ScalesOf&& scales_of) {
  const int32_t lane = simt::not_kept(simt::lane());  // registers are scarce
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  TokenScales of[2] = {scales_of(0), scales_of(1)};
  if (!tile.is_full()) {  // places without a token may hold any scale
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      if (!tile.sees(32 * (i / 4) + 4 * g + i % 4)) {
        of[i / 4].scales.of[i % 4] = 0;
        of[i / 4].zeros.of[i % 4] = 0;
      }
    }
  }
  CodeWeights<kProducts> result = {};
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    float scaled[8];
    float largest = kMinLargest;
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      const float weight = weights[product][i];
      scaled[i] = weight * of[i / 4].scales.of[i % 4];
      result.zeros[product] = simt::fma(weight, of[i / 4].zeros.of[i % 4], result.zeros[product]);
      largest = simt::max(largest, scaled[i]);
    }
    TESSERA_UNROLL
    for (int32_t mask = 4; mask < simt::kWarp; mask *= 2) {
      largest = simt::max(largest, simt::shuffle_xor(largest, mask));
    }
    result.step[product] = largest * (1 / kCodeRange);
    const float inverse = kCodeRange * simt::reciprocal(largest);
    TESSERA_UNROLL
    for (int32_t set = 0; set < 2; ++set) {
      const CodeBytes bytes(scaled + 4 * set, inverse);
      memory.weights[product][2 * t][8 * set + g] = bytes.high;
      memory.weights[product][2 * t + 1][8 * set + g] = bytes.low;
    }
  }
  simt::sync_warp();
  return result;
}

// Adds the values of a chunk of 32 tokens to the lane's sums. words_at(part, line): the lane's
// words of a line. block: block of 16 channels that the lane has.
template <int kBits, int kDim, int kProducts, class WordsAt>
TESSERA_DEVICE void add_value_chunk(const WarpMemory<kDim, kProducts>& memory, int32_t block,
                                    int32_t chunk, WordsAt&& words_at,
                                    int32_t (&sums)[kProducts][2][4]) {
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  simt::Words words[2];
  TESSERA_UNROLL
  for (int32_t half = 0; half < 2; ++half) {
    words[half] = words_at(value_part<kBits>(chunk, half, t), value_line<kBits>(block, t));
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      words[half].at[i] =
          unpacked<kBits>(words[half].at[i], value_index<kBits>(block, chunk, half));
    }
  }
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    uint32_t weight[2];
    TESSERA_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      weight[half] = memory.weights[product][g][4 * value_part<kBits>(chunk, half, t) +
                                                value_quad<kBits>(chunk, half, t)];
    }
    TESSERA_UNROLL
    for (int32_t m = 0; m < 2; ++m) {
      const uint32_t values[4] = {words[0].at[2 * m], words[0].at[2 * m + 1], words[1].at[2 * m],
                                  words[1].at[2 * m + 1]};
      simt::mma_u8s8(sums[product][m], values, weight);
    }
  }
}

// Computes out[product][block][i] = out * correction + the values of those sums.
template <int kProducts, int kBlocks>
TESSERA_DEVICE void add_value_sums(int32_t block, const int32_t (&sums)[kProducts][2][4],
                                   const CodeWeights<kProducts>& weights,
                                   const float (&correction)[kProducts],
                                   float (&out)[kProducts][kBlocks][4]) {
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      float& to = out[product][block][i];
      to = simt::fma(to, correction[product], row_sum(sums[product], i) * weights.step[product]);
    }
  }
}

// Computes out[product][block][i] = out * correction + the sum over the tile's tokens, for channel
// 32 block + 4 g + i and the lane's pair. The values' zeros are not included.
template <int kBits, int kDim, int kProducts>
TESSERA_DEVICE void add_code_values(const WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                    const CodeWeights<kProducts>& weights,
                                    const float (&correction)[kProducts],
                                    float (&out)[kProducts][kDim / 32][4]) {
  const int32_t g = simt::lane() / 4;
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
      add_value_chunk<kBits>(
          memory, of_lane, chunk,
          [&](int32_t part, int32_t line) {
            return simt::load_global(memory.places[tile.first_place + part].values + 64 * line +
                                     16 * (g % 4));
          },
          sums);
    }
    add_value_sums(block, sums, weights, correction, out);
  }
}

}  // namespace tessera::cuda
