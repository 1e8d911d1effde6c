#pragma once

#include "kernels/cuda/attention/float_products.h"
#include "kernels/cuda/attention/sparse_parts.h"

namespace tessera::cuda {

// Products of tiles of sparse formats with queries and weights: loaded compressed, computed
// dense. A lane reads a few tokens from the warp's memory, channel by channel: the
// next kept one if the bitmap has its bit set, else 0. That builds f16 fragments in registers for
// the same products as dense f16 (float_products.h). Nothing dense is ever written to memory. A
// tile is expanded once for all pairs of a block. The scales of codes are applied to a token's
// score and weight. `parts`: SparseParts or CopiedParts of the tile's keys (values).

// Reads the channels of a token in order, from some first channel on. Bit i of `bits` is set if
// channel first + i is kept.
struct ChannelStream {
  const f16* next;
  uint32_t bits;

  // Returns: the next channel, which is that of `bit`: f16 bits, in the lower half.
  TESSERA_DEVICE uint32_t take(int32_t bit) {
    uint32_t channel = 0;
    if (simt::has_bit(bits, bit)) {
      channel = next->bits;
      ++next;
    }
    return channel;
  }
  // Takes the next channel into the upper half of a word that is 0 there. The compiler gets seven
  // conditions from a byte by one instruction. A condition on the eighth bit would be saved until
  // its channel has come, so that channel is merged without one.
  TESSERA_DEVICE void take_high(int32_t bit, uint32_t& word) {
    if (bit % 8 == 7) {
      word = simt::merge_low(word, take(bit));
    } else if (simt::has_bit(bits, bit)) {
      word = simt::merge_low(word, next->bits);
      ++next;
    }
  }
};

// Place of a lane's channels of a token in a part's memory, from some first channel on. kUnits: as
// in SparsePart::index().
template <int kDim, int kUnits>
struct ChannelPlace {
  static constexpr int32_t kUnit = kDim / kUnits;

  const f16* kept;
  const uint32_t* bitmap;
  const uint8_t* start;
  int32_t bit;  // of the first channel in its word of the bitmap

  template <int kStride>
  TESSERA_DEVICE ChannelPlace(const SparsePart<kDim, kStride>& part, int32_t stride, int32_t token,
                              int32_t channel)
      : kept(part.kept + token * stride),
        bitmap(&part.bitmaps[token][channel / 32]),
        start(&part.starts[token][channel / kUnit]),
        bit(channel % 32) {}

  // Moves to the same token of a part that lies `bytes` behind.
  TESSERA_DEVICE void move(int32_t bytes) {
    kept += bytes / sizeof(f16);
    bitmap += bytes / sizeof(uint32_t);
    start += bytes;
  }

  // Returns: the channels of the token that is `tokens` behind, up to the end of their word.
  TESSERA_DEVICE ChannelStream stream(int32_t tokens, int32_t stride) const {
    const int32_t in_unit = bit % kUnit;
    const uint32_t word = bitmap[tokens * (kDim / 32)] >> (bit - in_unit);
    const int32_t before =
        start[tokens * SparsePart<kDim, 1>::kStarts] + simt::popcount(word & ((1u << in_unit) - 1));
    return {kept + tokens * stride + before, word >> in_unit};
  }
};

// Computes scores[product][i] for token 8 g + i and the lane's pair, in the order of half_scores().
// Lane (g, t) reads a quarter of the channels of tokens g and g + 8 of each 16. Scores are
// rearranged through the warp's memory.
template <int kDim, int kProducts, class Parts>
TESSERA_DEVICE void sparse_scores(HalfWarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                  Parts& parts, float (&scores)[kProducts][8]) {
  constexpr int32_t kTile = KvPageLayout::kKeyTile;
  constexpr int32_t kQuarter = kDim / 4;
  constexpr int32_t kProductWords = 8 * WarpMemory<kDim, kProducts>::kWeightWords;
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  const int32_t first_part = tile.first_part();
  float* to = scores_in(memory, 0) + first_part * kTile + g;
  ChannelPlace<kDim, kKeyUnits> place(parts.at(first_part), parts.stride(), g, kQuarter * t);
  TESSERA_UNROLL_BY(1)
  for (int32_t index = first_part; index < tile.end_part();
       ++index, to += kTile, place.move(Parts::kPartBytes)) {
    parts.template bring<kKeyUnits>(index, memory.places[tile.first_place + index].keys);
    uint32_t of_keys[kQuarter / 4][4];
    TESSERA_UNROLL
    for (int32_t i = 0; i < 2; ++i) {
      ChannelStream channels = place.stream(8 * i, parts.stride());
      TESSERA_UNROLL
      for (int32_t c = 0; c < kQuarter; c += 2) {
        uint32_t& word = of_keys[c / 4][c / 2 % 2 * 2 + i];
        word = channels.take(c);
        channels.take_high(c + 1, word);
      }
    }
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      float sums[2][4] = {};  // of every second product, since a product waits for its sums
      TESSERA_UNROLL
      for (int32_t four = 0; four < kQuarter / 4; ++four) {
        const auto* query = reinterpret_cast<const uint32_t*>(
            &memory.halves.columns[8 * product + g][kQuarter * t + 4 * four]);
        const uint32_t of_query[2] = {query[0], query[1]};
        simt::mma_f16(sums[four % 2], of_keys[four], of_query);
      }
      TESSERA_UNROLL
      for (int32_t i = 0; i < 2; ++i) {
        to[product * kProductWords + 8 * i] =
            sum_of_parts(sums[0] + 2 * i) + sum_of_parts(sums[1] + 2 * i);
      }
    }
  }
  take_scores(memory, scores);
  if (tile.layout.format.key_bits <= 8) {
    TESSERA_UNROLL
    for (int32_t first = 0; first < 8; first += 4) {
      const FourScales scales =
          FourScales::at(memory.places[tile.first_place + g / 2].key_scales + 8 * (g % 2) + first);
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
  const f16* scales = memory.places[tile.first_place + g / 2].value_scales + 8 * (g % 2);
  const bool codes = tile.layout.format.value_bits <= 8;
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    step[product] = 1;
    if (!codes) {
      continue;
    }
    const FourScales of[2] = {FourScales::at(scales), FourScales::at(scales + 4)};
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
// first(block) + i of Channels and the lane's pair. Lane (g, t) reads these channels of tokens 2 t,
// 2 t + 1, 2 t + 8 and 2 t + 9 of each 16.
template <class Channels, int kDim, int kProducts, class Parts>
TESSERA_DEVICE void add_sparse_values(const WarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                      Parts& parts, const float (&step)[kProducts],
                                      const float (&correction)[kProducts],
                                      float (&out)[kProducts][kDim / 32][4]) {
  constexpr int32_t kOwn = 4;                                     // a lane's tokens of each 16
  constexpr int32_t kRun = Channels::kNeighbours ? kDim / 8 : 4;  // channels of a token at once
  const int32_t lane = simt::not_kept(simt::lane());              // registers are scarce
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < kDim / 8; ++i) {
      out[product][i / 4][i % 4] *= correction[product];
    }
  }
  constexpr int32_t kProductWords = 8 * WarpMemory<kDim, kProducts>::kWeightWords;
  using Place = ChannelPlace<kDim, kValueUnits>;
  const int32_t first_part = tile.first_part();
  Place place(parts.at(first_part), parts.stride(), 2 * t, Channels::template first<kDim>(0));
  const uint32_t* weights = memory.weights[0][g] + 8 * first_part + t;
  TESSERA_UNROLL_BY(1)
  for (int32_t index = first_part; index < tile.end_part();
       ++index, weights += 8, place.move(Parts::kPartBytes)) {
    parts.template bring<kValueUnits>(index, memory.places[tile.first_place + index].values);
    ChannelStream from[kOwn];
    TESSERA_UNROLL
    for (int32_t first = 0; first < kDim / 8; first += kRun) {
      if (first / 4 * 32 >= tile.layout.head_dim) {
        break;
      }
      uint32_t channels[kOwn / 2][kRun];  // of two tokens each
      TESSERA_UNROLL
      for (int32_t i = 0; i < kOwn; ++i) {
        const int32_t token = i % 2 + i / 2 * 8;
        if (Channels::kNeighbours) {
          from[i] = first == 0 ? place.stream(token, parts.stride()) : from[i];
        } else {
          from[i] = Place(parts.at(index), parts.stride(), 2 * t,
                          Channels::template first<kDim>(first / 4))
                        .stream(token, parts.stride());
        }
        TESSERA_UNROLL
        for (int32_t c = 0; c < kRun; ++c) {
          const int32_t bit = Channels::kNeighbours ? first + c : c;
          if (i % 2 == 0) {
            channels[i / 2][c] = from[i].take(bit);
          } else {
            from[i].take_high(bit, channels[i / 2][c]);
          }
        }
      }
      TESSERA_UNROLL
      for (int32_t c = 0; c < kRun; c += 2) {
        const uint32_t of_values[4] = {channels[0][c], channels[0][c + 1], channels[1][c],
                                       channels[1][c + 1]};
        TESSERA_UNROLL
        for (int32_t product = 0; product < kProducts; ++product) {
          const uint32_t* of_tokens = weights + product * kProductWords;
          const uint32_t weight[2] = {of_tokens[0], of_tokens[4]};
          float sums[4] = {};
          simt::mma_f16(sums, of_values, weight);
          TESSERA_UNROLL
          for (int32_t i = 0; i < 2; ++i) {
            float& to = out[product][(first + c) / 4][(first + c) % 4 + i];
            to = simt::fma(sum_of_parts(sums + 2 * i), step[product], to);
          }
        }
      }
    }
  }
}

}  // namespace tessera::cuda
