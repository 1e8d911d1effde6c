#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/tiles/lane_softmax.h"
#include "kernels/cpu/tiles/line_fetch.h"
#include "kernels/cpu/tiles/pair_block.h"
#include "kernels/kv/code_step.h"
#include "kernels/kv/codebook.h"

namespace tessera {

// Attention over tiles of codes, written over a vector type C (code_lanes_*.h). A line is loaded
// and unpacked once for a step of pairs, and multiplied as integers. Scales and zeros are applied
// to the sums. Sums of products are exact integers, so their order is free. The order is chosen so
// that registers hold the sums of `at_once` key tiles (channel blocks) for each pair.
template <class C>
struct CodeAttention {
  using V = typename C::Floats;
  using Sum = typename C::Sum;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kLineVectors = C::kLineVectors;
  static constexpr int kTileVectors = kAttentionTile / kLanes;
  static constexpr int kLineBytes = KvPageLayout::kLineBytes;
  static constexpr int kVectorBytes = kLineBytes / kLineVectors;
  static constexpr int kPackVectors = 64 / kLanes;

  template <int kBits>
  static constexpr int kUnitLines = kBits == 3 || kBits == 6 ? 3 : 1;
  // Sub-lines that share kUnitLines lines.
  template <int kBits>
  static constexpr int kShared = kUnitLines<kBits> * 8 / kBits;

  // Sub-line kSub of the unit at `unit`, of which a vector is loaded.
  template <int kBits, int kSub>
  static typename C::Codes codes_at(const std::byte* unit) {
    if constexpr (has_codebook(kBits)) {
      return C::template codebook_sub_line<kSub>(C::load(unit), C::load(unit + kLineBytes),
                                                 C::load(unit + 2 * kLineBytes));
    } else if constexpr (kBits == 6) {
      return C::template six_bit_sub_line<kSub>(C::load(unit), C::load(unit + kLineBytes),
                                                C::load(unit + 2 * kLineBytes));
    } else {
      return C::template sub_line<kBits, kSub>(C::load(unit));
    }
  }

  // ---- queries

  static void load_query_codes(PairBlock& block, int32_t pair, const float* query, float factor) {
    V numbers[kMaxHeadDim / kLanes];
    const int count = static_cast<int>(round_up(block.head_dim, 64)) / kLanes;
    V sum = V::zero();
    V largest = V::zero();
    for (int i = 0; i < count; ++i) {
      const int channel = i * kLanes;
      numbers[i] = channel + kLanes <= block.head_dim ? V::load(query + channel)
                   : channel < block.head_dim         ? V::load_half(query + channel)
                                                      : V::zero();
      numbers[i] = numbers[i] * V::all(factor);
      sum = sum + numbers[i];
      largest = V::max(largest, V::max(numbers[i], V::zero() - numbers[i]));
    }
    const float bounded = std::max(largest.highest(), kMinLargest);
    const float inverse = kCodeRange / bounded;
    block.query_steps[pair] = bounded / kCodeRange;
    block.query_sums[pair] = sum.sum();
    auto& codes = block.query_codes[pair];
    for (int i = 0; i < count; i += kPackVectors) {
      const int quad = i * kLanes / 4;
      C::pack(numbers + i, inverse, codes[0] + quad, codes[1] + quad);
    }
  }

  // Unrolled assignments keep the sums in registers from the start.
  template <int kPairs, int kSums>
  static void clear(Sum (&sums)[kPairs][kSums]) {
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
      for (int i = 0; i < kSums; ++i) {
        sums[pair][i] = Sum::zero();
      }
    }
  }

  // ---- keys

  // Multiplies quads of numbers by codes. `numbers` points to those of the first pair. Its two
  // parts are kStride apart, and pairs are two parts apart, so one address serves all.
  template <int kStride, int kPairs, int kSums>
  static void multiply(const int32_t* numbers, const typename C::Codes (&codes)[kSums],
                       Sum (&sums)[kPairs][kSums]) {
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      const int32_t* first = numbers + pair * PairBlock::kParts * kStride;
      const auto factor = C::factor(first, first + kStride);
#pragma GCC unroll 8
      for (int i = 0; i < kSums; ++i) {
        sums[pair][i].add(codes[i], factor);
      }
    }
  }

  // Writes the scores of the key tiles from `first_tile` on, from their sums.
  template <int kBits, int kPairs, int kSums>
  static void write_scores(PairBlock& block, int first, const KvTile& tile, int first_tile,
                           const Sum (&sums)[kPairs][kSums]) {
#pragma GCC unroll 8
    for (int i = 0; i < kSums; ++i) {
      const int64_t lane = i % kLineVectors * kLanes;
      const int key_tile = first_tile + i / kLineVectors;
      const std::byte* scales = tile.scales[key_tile] + 2 * lane;
      const V scale = V::load_f16(scales);
      const V zero = has_codebook(kBits) ? scale * V::all(-kCodebookZero)
                                         : V::load_f16(scales + tile.shape->key_zeros);
#pragma GCC unroll 8
      for (int pair = 0; pair < kPairs; ++pair) {
        const V of_zero = zero * V::all(block.query_sums[first + pair]);
        const V dot = sums[pair][i].total() * V::all(block.query_steps[first + pair]);
        V::fma(dot, scale, of_zero)
            .store(block.weights + (first + pair) * kAttentionTile + key_tile * kKeyTile + lane);
      }
    }
  }

  // Adds sub-lines kSub of the units that are `at` bytes into the key tiles.
  template <int kBits, int kPairs, int kSums, int... kSub>
  static void add_keys(const std::byte* const* key_tiles, int64_t at, const int32_t* queries,
                       Sum (&sums)[kPairs][kSums], std::integer_sequence<int, kSub...>) {
    const auto add = [&]<int kOne>(std::integral_constant<int, kOne>) {
      typename C::Codes codes[kSums];
#pragma GCC unroll 8
      for (int i = 0; i < kSums; ++i) {
        codes[i] = codes_at<kBits, kOne>(key_tiles[i / kLineVectors] + at +
                                         i % kLineVectors * kVectorBytes);
      }
      multiply<PairBlock::kQueryQuads>(queries + kOne, codes, sums);
    };
    (add(std::integral_constant<int, kSub>{}), ...);
  }

  template <int kBits, int kPairs>
  static void scores(PairBlock& block, int first, const KvTile& tile, LineFetch& fetch) {
    constexpr int kTiles = C::at_once(kPairs);
    constexpr int kSums = kTiles * kLineVectors;
    constexpr int kUnits = kBits == 8 ? 2 : 1;  // in an iteration, to amortise the loop
    constexpr int kUnitBytes = kUnitLines<kBits> * kLineBytes;
    const int64_t bytes = tile.shape->key_bytes;
    LineFetch fetching = fetch;
    for (int first_tile = 0; first_tile < kKeyTilesInTile; first_tile += kTiles) {
      Sum sums[kPairs][kSums];
      clear(sums);
      const int32_t* queries = block.query_codes[first][0];
      const std::byte* const* key_tiles = tile.keys + first_tile;
      for (int64_t at = 0; at < bytes; at += kUnits * kUnitBytes) {
#pragma GCC unroll 2
        for (int unit = 0; unit < kUnits; ++unit) {
          add_keys<kBits>(key_tiles, at + unit * kUnitBytes, queries, sums,
                          std::make_integer_sequence<int, kShared<kBits>>{});
          queries += kShared<kBits>;
        }
        fetching.some();
      }
      write_scores<kBits, kPairs>(block, first, tile, first_tile, sums);
    }
    fetch = fetching;
  }

  // ---- weights

  // Turns scores of pairs [begin, end) into weights, and weights times value scales into integers.
  // Requires: `begin` is a multiple of 4. If some pair does not see the whole tile, scales outside
  // [step.begin, step.end) count as 0.
  template <bool kWhole>
  static void weigh(PairBlock& block, const TileStep& step, int begin, int end) {
    LaneSoftmax<V>::template raise_maxima<kWhole>(block, begin, end);
    V scales[kTileVectors];
    V zeros[kTileVectors];
    const uint64_t present = ~uint64_t{0} >> (kAttentionTile - (step.end - step.begin))
                                                 << step.begin;
#pragma GCC unroll 8
    for (int i = 0; i < kTileVectors; ++i) {
      const uint32_t bits = static_cast<uint32_t>(present >> (i * kLanes));
      const std::byte* at = step.tile.scales[i * kLanes / kKeyTile] + 2 * (i * kLanes % kKeyTile);
      scales[i] = V::load_f16(at + step.tile.shape->value_scales);
      zeros[i] = step.tile.shape->values_have_zeros ? V::load_f16(at + step.tile.shape->value_zeros)
                                                    : scales[i] * V::all(-kCodebookZero);
      if (!kWhole) {
        scales[i] = scales[i].where(bits, V::zero());
        zeros[i] = zeros[i].where(bits, V::zero());
      }
    }
    alignas(64) float inverses[PairBlock::kPairs];
    for (int first = begin; first < end; first += 4) {
      V largest[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        largest[j] = V::zero();
        if (first + j < end) {
          largest[j] = scale_weights<kWhole>(block, first + j, scales, zeros, step.left);
        }
      }
      const V bounded = V::max(V::all(kMinLargest), V::highest(largest));
      (bounded / V::all(kCodeRange)).store_4(block.weight_steps + first);
      (V::all(kCodeRange) / bounded).store_4(inverses + first);
    }
    for (int pair = begin; pair < end; ++pair) {
      V scaled[kTileVectors];
#pragma GCC unroll 8
      for (int i = 0; i < kTileVectors; ++i) {
        scaled[i] = V::load(block.weights + pair * kAttentionTile + i * kLanes);
      }
      auto& codes = block.weight_codes[pair];
      C::pack(scaled, inverses[pair], codes[0], codes[1]);
    }
  }

  static void weigh(PairBlock& block, const TileStep& step, int begin, int end) {
    step.whole ? weigh<true>(block, step, begin, end) : weigh<false>(block, step, begin, end);
  }

  // Replaces one pair's scores by weights times scales. Also writes the weights to `left` unless it
  // is null.
  // Returns: the maximum product of each lane.
  template <bool kWhole>
  static V scale_weights(PairBlock& block, int pair, const V (&scales)[kTileVectors],
                         const V (&zeros)[kTileVectors], float* left) {
    float* scaled = block.weights + pair * kAttentionTile;
    V of_zeros = V::zero();
    V largest = V::zero();
    LaneSoftmax<V>::template weigh_pair<kWhole>(block, pair, [&](int i, V weight) {
      const V product = weight * scales[i];
      product.store(scaled + i * kLanes);
      if (left != nullptr) {
        weight.store(left + pair * kAttentionTile + i * kLanes);
      }
      largest = V::max(largest, product);
      of_zeros = V::fma(weight, zeros[i], of_zeros);
    });
    float* sums = block.zeros + pair * kKeyTile;
    V::fma(V::load(sums), V::all(block.corrections[pair]), of_zeros).store(sums);
    return largest;
  }

  // ---- values

  template <int kPairs, int kSums>
  static void write_values(PairBlock& block, int first, int channel_block,
                           const Sum (&sums)[kPairs][kSums]) {
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      const V correction = V::all(block.corrections[first + pair]);
      const V step = V::all(block.weight_steps[first + pair]);
      float* values = block.values + int64_t{first + pair} * block.head_dim;
#pragma GCC unroll 8
      for (int i = 0; i < kSums; ++i) {
        const int channel = channel_block * kKeyTile + i * kLanes;
        if (channel + kLanes <= block.head_dim) {
          const V before = V::load(values + channel) * correction;
          V::fma(sums[pair][i].total(), step, before).store(values + channel);
        } else if (channel < block.head_dim) {
          const V before = V::load_half(values + channel) * correction;
          V::fma(sums[pair][i].total(), step, before).store_half(values + channel);
        }
      }
    }
  }

  // Adds channel blocks [channel_block, channel_block + kBlocks). Their sub-lines begin at sub-line
  // kFirst of their first line.
  template <int kBits, int kPairs, int kBlocks, int kFirst>
  static void add_values(PairBlock& block, int first, const KvTile& tile, int channel_block,
                         LineFetch& fetch) {
    constexpr int kSubs = kShared<kBits>;
    constexpr int kUnitBytes = kUnitLines<kBits> * kLineBytes;
    constexpr int kSums = kBlocks * kLineVectors;
    Sum sums[kPairs][kSums];
    clear(sums);
    const int64_t at = int64_t{4 * channel_block / kSubs} * kUnitBytes;
    for (int key_tile = 0; key_tile < kKeyTilesInTile; ++key_tile) {
      const std::byte* lines = tile.values[key_tile] + at;
      const int32_t* weights = block.weight_codes[first][0] + 4 * key_tile;
      [&]<int... kQuads>(std::integer_sequence<int, kQuads...>) {
        const auto add = [&]<int kQuad>(std::integral_constant<int, kQuad>) {
          typename C::Codes codes[kSums];
          [&]<int... kVectors>(std::integer_sequence<int, kVectors...>) {
            ((codes[kVectors] =
                  codes_at<kBits, (kFirst + 4 * (kVectors / kLineVectors) + kQuad) % kSubs>(
                      lines +
                      (kFirst + 4 * (kVectors / kLineVectors) + kQuad) / kSubs * kUnitBytes +
                      kVectors % kLineVectors * kVectorBytes)),
             ...);
          }
          (std::make_integer_sequence<int, kSums>{});
          multiply<PairBlock::kWeightQuads>(weights + kQuad, codes, sums);
        };
        (add(std::integral_constant<int, kQuads>{}), ...);
      }
      (std::make_integer_sequence<int, 4>{});
      fetch.some();
    }
    write_values<kPairs>(block, first, channel_block, sums);
  }

  template <int kBits, int kPairs>
  static void add_all_values(PairBlock& block, int first, const KvTile& tile, LineFetch& fetch) {
    constexpr int kBlocks = C::at_once(kPairs);
    constexpr bool kTwoBlocks = kShared<kBits> == 8;  // two blocks share a unit
    const int blocks = static_cast<int>(div_ceil(block.head_dim, kKeyTile));
    int at = 0;
    for (; at + kBlocks <= blocks; at += kBlocks) {
      if (kTwoBlocks && at % 2 != 0) {
        add_values<kBits, kPairs, kBlocks, 4 % kShared<kBits>>(block, first, tile, at, fetch);
      } else {
        add_values<kBits, kPairs, kBlocks, 0>(block, first, tile, at, fetch);
      }
    }
    for (; at < blocks; ++at) {
      if (kTwoBlocks && at % 2 != 0) {
        add_values<kBits, kPairs, 1, 4 % kShared<kBits>>(block, first, tile, at, fetch);
      } else {
        add_values<kBits, kPairs, 1, 0>(block, first, tile, at, fetch);
      }
    }
  }

  // ---- a tile

  using Pass = void (*)(PairBlock&, int, const KvTile&, LineFetch&);

  template <int kBits, int... kPairs>
  static constexpr auto score_passes(std::integer_sequence<int, kPairs...>) {
    return Passes{{scores<kBits, kPairs + 1>...}};
  }
  template <int kBits, int... kPairs>
  static constexpr auto value_passes(std::integer_sequence<int, kPairs...>) {
    return Passes{{add_all_values<kBits, kPairs + 1>...}};
  }
  struct Passes {
    Pass of[C::kStep];  // [pairs - 1]
  };

  static const Passes& score_passes(int bits) {
    constexpr auto kSteps = std::make_integer_sequence<int, C::kStep>{};
    static constexpr Passes k8 = score_passes<8>(kSteps);
    static constexpr Passes k6 = score_passes<6>(kSteps);
    static constexpr Passes k4 = score_passes<4>(kSteps);
    static constexpr Passes k3 = score_passes<3>(kSteps);
    static constexpr Passes k2 = score_passes<2>(kSteps);
    return bits == 8 ? k8 : bits == 6 ? k6 : bits == 4 ? k4 : bits == 3 ? k3 : k2;
  }
  static const Passes& value_passes(int bits) {
    constexpr auto kSteps = std::make_integer_sequence<int, C::kStep>{};
    static constexpr Passes k8 = value_passes<8>(kSteps);
    static constexpr Passes k4 = value_passes<4>(kSteps);
    static constexpr Passes k3 = value_passes<3>(kSteps);
    static constexpr Passes k2 = value_passes<2>(kSteps);
    static constexpr Passes k1 = value_passes<1>(kSteps);
    return bits == 8 ? k8 : bits == 4 ? k4 : bits == 3 ? k3 : bits == 2 ? k2 : k1;
  }

  // Prefetches the next tile's keys while keys are read, and its values while values are read.
  // Under load, a tile takes less time than one memory access.
  static LineFetch fetch_keys(const PairBlock& block, const TileStep& step) {
    if (step.next == nullptr) {
      return {};
    }
    if (step.next->shape->layout.format.is_codes()) {
      fetch_scales(*step.next);
    }
    const int key_bits = step.tile.shape->layout.format.key_bits;
    const int64_t lines =  // in one some()
        key_bits == 8                    ? 2
        : key_bits == 3 || key_bits == 6 ? 3
                                         : 1;
    const int64_t call_bytes = C::at_once(pairs_of_step(block)) * lines * kLineBytes;
    return {step.next->keys, step.next->shape->key_bytes,
            call_bytes * growth(step.next->shape->key_bytes, step.tile.shape->key_bytes)};
  }
  static LineFetch fetch_values(const PairBlock& block, const TileStep& step) {
    if (step.next == nullptr) {
      return {};
    }
    const int64_t block_bytes = 4 * kLineBytes * step.tile.shape->layout.format.value_bits / 8;
    const int64_t call_bytes = C::at_once(pairs_of_step(block)) * block_bytes;
    return {step.next->values, step.next->shape->value_bytes,
            call_bytes * growth(step.next->shape->value_bytes, step.tile.shape->value_bytes)};
  }
  // Returns: size of the next tile relative to the current one, rounded up.
  static int64_t growth(int64_t next, int64_t now) {
    return next == now ? 1 : div_ceil(next, now);
  }
  static int pairs_of_step(const PairBlock& block) {
    return block.pairs < C::kStep ? block.pairs : C::kStep;
  }
  static void fetch_scales(const KvTile& tile) {
    for (const std::byte* scales : tile.scales) {
      __builtin_prefetch(scales);
      __builtin_prefetch(scales + tile.shape->key_zeros);
      __builtin_prefetch(scales + tile.shape->value_scales);
      __builtin_prefetch(scales + tile.shape->value_zeros);
    }
  }

  static void run_passes(const Passes& passes, PairBlock& block, const KvTile& tile,
                         LineFetch fetch) {
    for (int first = 0; first < block.pairs; first += C::kStep) {
      const int left = block.pairs - first;
      passes.of[(left < C::kStep ? left : C::kStep) - 1](block, first, tile, fetch);
    }
  }

  static void score_tile(PairBlock& block, const TileStep& step) {
    const KvFormat format = step.tile.shape->layout.format;
    run_passes(score_passes(format.key_bits), block, step.tile, fetch_keys(block, step));
  }

  static void add_tile(PairBlock& block, const TileStep& step) {
    const KvFormat format = step.tile.shape->layout.format;
    score_tile(block, step);
    weigh(block, step, 0, block.pairs);
    if (step.left != nullptr) {
      LaneSoftmax<V>::leave_maxima(block, step.left);
    }
    run_passes(value_passes(format.value_bits), block, step.tile, fetch_values(block, step));
  }
};

}  // namespace tessera
