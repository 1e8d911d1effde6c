#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/tiles/lane_softmax.h"
#include "kernels/cpu/tiles/line_fetch.h"
#include "kernels/cpu/tiles/pair_block.h"
#include "kernels/matrix/e4m3.h"
#include "kernels/matrix/half.h"

namespace tessera {

// Attention over tiles of floats, written over a vector type V. Values may also be int8_t, as
// sparse_attention.h produces them. Loops with template parameters as bounds unroll, and their
// arrays stay in registers. Functions of the table AttentionKernels have its contract; the others
// are its parts.
// Requires: head_dim is a multiple of kHeadDimMultiple, at most kMaxHeadDim.
template <class V>
struct LaneAttention {
  using Softmax = LaneSoftmax<V>;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kStep = PairBlock::kStep;
  static constexpr int kTileVectors = kAttentionTile / kLanes;
  static constexpr int kCacheLine = 64;

  template <class T>
  static V load(const T* p) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return V::load(p);
    } else if constexpr (sizeof(T) == sizeof(f16)) {
      return V::load_f16(p);
    } else if constexpr (std::is_same_v<T, e4m3>) {
      return V::load_e4m3(p);
    } else {
      return V::load_i8(p);
    }
  }

  // Prefetches the cache lines that begin in the kBytes bytes at `p`.
  template <int kBytes>
  static void prefetch(const std::byte* p) {
    if constexpr (kBytes < kCacheLine) {
      if (reinterpret_cast<uintptr_t>(p) % kCacheLine >= kBytes) {
        return;
      }
    }
    for (int i = 0; i < kBytes; i += kCacheLine) {
      __builtin_prefetch(p + i);
    }
  }

  static void load_query(PairBlock& block, int32_t pair, const float* query, float factor) {
    float* packed = block.queries + int64_t{pair / kStep} * kStep * block.head_dim + pair % kStep;
    for (int32_t channel = 0; channel < block.head_dim; ++channel) {
      packed[int64_t{channel} * kStep] = query[channel] * factor;
    }
  }

  // Adds one channel's part of the scores.
  template <class Key, int kPairs>
  static void add_scores(const float* queries, const std::byte* const* key_tiles, int64_t channel,
                         V (&sums)[kPairs][V::kKeyTilesAtOnce * (kKeyTile / kLanes)]) {
    constexpr int kVectors = kKeyTile / kLanes;  // in one key tile
    V keys[V::kKeyTilesAtOnce * kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < V::kKeyTilesAtOnce * kVectors; ++i) {
      const Key* key_tile = reinterpret_cast<const Key*>(key_tiles[i / kVectors]);
      keys[i] = load(key_tile + channel * kKeyTile + i % kVectors * kLanes);
    }
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      const V query = V::all(queries[channel * kStep + pair]);
#pragma GCC unroll 8
      for (int i = 0; i < V::kKeyTilesAtOnce * kVectors; ++i) {
        sums[pair][i] = V::fma(query, keys[i], sums[pair][i]);
      }
    }
  }

  // Writes the scores of kPairs pairs against one tile. With kFetches, the tile's values are
  // prefetched while the keys are read; the first pass over a tile does so.
  template <class Key, int kPairs, bool kFetches>
  static void scores(const float* queries, const KvTile& tile, int32_t head_dim, float* out) {
    constexpr int kTiles = V::kKeyTilesAtOnce;
    constexpr int kVectors = kKeyTile / kLanes;  // in one key tile
    for (int first = 0; first < kKeyTilesInTile; first += kTiles) {
      V sums[kPairs][kTiles * kVectors];
#pragma GCC unroll 8
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
        for (int i = 0; i < kTiles * kVectors; ++i) {
          sums[pair][i] = V::zero();
        }
      }
      // Channels are cut into kTiles parts, each of which prefetches one key tile of values. Memory
      // is then read in the order of its addresses.
      const int64_t part_channels = head_dim / kTiles;
      for (int part = 0; part < kTiles; ++part) {
        const std::byte* fetched = tile.values[first + part];
        for (int64_t i = 0; i < part_channels; ++i) {
          add_scores<Key, kPairs>(queries, tile.keys + first, part * part_channels + i, sums);
          if constexpr (kFetches) {
            prefetch<kTiles * kKeyTile * sizeof(Key)>(fetched);
            fetched += kTiles * kKeyTile * sizeof(Key);
          }
        }
      }
#pragma GCC unroll 8
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
        for (int i = 0; i < kTiles * kVectors; ++i) {
          sums[pair][i].store(out + pair * kAttentionTile + first * kKeyTile + i * kLanes);
        }
      }
    }
  }

  // Arguments of the weighted values: values = values * correction + weights * V, for kPairs pairs
  // and the kVectors vectors of channels that begin at `channel`.
  struct ValueStep {
    const TileStep& step;
    LineFetch fetch;           // one call every kTokensOfFetch tokens
    const float* weights;      // [pairs, tokens of the tile]
    const float* corrections;  // [pairs]
    float* values;             // [pairs, head_dim]
    int64_t head_dim;
    int64_t channel;
  };

  // Tokens between two prefetches. As many bytes of the next keys are prefetched as bytes of values
  // are read, in whole cache lines.
  template <class Value>
  static constexpr int kTokensOfFetch =
      std::max<int>(1, kCacheLine / (V::kValueVectors * kLanes * static_cast<int>(sizeof(Value))));

  // Adds one token's part of the weighted values.
  template <class Value, int kPairs, int kVectors>
  static void add_token(const Value* in, const float* weights, V (&sums)[kPairs][kVectors]) {
    V loaded[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      loaded[i] = load(in + i * kLanes);
    }
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      const V weight = V::all(weights[pair * kAttentionTile]);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        sums[pair][i] = V::fma(weight, loaded[i], sums[pair][i]);
      }
    }
  }

  template <class Value, int kPairs, int kVectors>
  static void add_values(ValueStep& args) {
    V sums[kPairs][kVectors];
    float* values = args.values + args.channel;
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      const V correction = V::all(args.corrections[pair]);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        sums[pair][i] = V::load(values + pair * args.head_dim + i * kLanes) * correction;
      }
    }
    LineFetch fetching = args.fetch;
    for (int32_t token = args.step.begin; token < args.step.end;) {
      const int32_t end = std::min(args.step.end, (token / kKeyTile + 1) * kKeyTile);
      const Value* in = reinterpret_cast<const Value*>(args.step.tile.values[token / kKeyTile]) +
                        token % kKeyTile * args.head_dim + args.channel;
      for (; token < end; ++token) {
        add_token<Value, kPairs, kVectors>(in, args.weights + token, sums);
        in += args.head_dim;
        if (token % kTokensOfFetch<Value> == 0) {
          fetching.some();
        }
      }
    }
    args.fetch = fetching;
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        sums[pair][i].store(values + pair * args.head_dim + i * kLanes);
      }
    }
  }

  // Adds the last 8 channels if head_dim is an odd multiple of 8 and a vector has 16 lanes.
  template <class Value>
  static void add_half_vector(const ValueStep& args, int pairs) {
    for (int pair = 0; pair < pairs; ++pair) {
      float* values = args.values + pair * args.head_dim + args.channel;
      V sum = V::load_half(values) * V::all(args.corrections[pair]);
      for (int32_t token = args.step.begin; token < args.step.end; ++token) {
        const int64_t row = token % kKeyTile * args.head_dim + args.channel;
        const Value* in =
            reinterpret_cast<const Value*>(args.step.tile.values[token / kKeyTile]) + row;
        V loaded;
        if constexpr (sizeof(Value) == sizeof(float)) {
          loaded = V::load_half(in);
        } else if constexpr (sizeof(Value) == sizeof(f16)) {
          loaded = V::load_half_f16(in);
        } else if constexpr (std::is_same_v<Value, e4m3>) {
          loaded = V::load_half_e4m3(in);
        } else {
          loaded = V::load_half_i8(in);
        }
        sum = V::fma(V::all(args.weights[pair * kAttentionTile + token]), loaded, sum);
      }
      sum.store_half(values);
    }
  }

  template <class Value, int kPairs>
  static void add_all_values(ValueStep args) {
    constexpr int64_t kWide = V::kValueVectors * kLanes;
    for (; args.channel + kWide <= args.head_dim; args.channel += kWide) {
      add_values<Value, kPairs, V::kValueVectors>(args);
    }
    if constexpr (V::kValueVectors > 2) {
      if (args.channel + 2 * kLanes <= args.head_dim) {
        add_values<Value, kPairs, 2>(args);
        args.channel += 2 * kLanes;
      }
    }
    if (args.channel + kLanes <= args.head_dim) {
      add_values<Value, kPairs, 1>(args);
      args.channel += kLanes;
    }
    if constexpr (kLanes > kHeadDimMultiple) {
      if (args.channel < args.head_dim) {
        add_half_vector<Value>(args, kPairs);
      }
    }
  }

  using ScoreStep = void (*)(const float*, const KvTile&, int32_t, float*);
  using AddValues = void (*)(ValueStep);

  template <class T, bool kFetches>
  static constexpr ScoreStep kScores[kStep] = {scores<T, 1, kFetches>, scores<T, 2, kFetches>,
                                               scores<T, 3, kFetches>, scores<T, 4, kFetches>,
                                               scores<T, 5, kFetches>, scores<T, 6, kFetches>};
  template <class T>
  static constexpr AddValues kAddValues[kStep] = {add_all_values<T, 1>, add_all_values<T, 2>,
                                                  add_all_values<T, 3>, add_all_values<T, 4>,
                                                  add_all_values<T, 5>, add_all_values<T, 6>};

  template <bool kFetches>
  static const ScoreStep* scores_of_bits(int bits) {
    return bits == 8    ? kScores<e4m3, kFetches>
           : bits == 16 ? kScores<f16, kFetches>
                        : kScores<float, kFetches>;
  }

  static void score_tile(PairBlock& block, const TileStep& step) {
    const ScoreStep* scores_of = scores_of_bits<false>(step.tile.shape->layout.format.key_bits);
    for (int first = 0; first < block.pairs; first += kStep) {
      const int left = block.pairs - first;
      scores_of[(left < kStep ? left : kStep) - 1](block.queries + int64_t{first} * block.head_dim,
                                                   step.tile, block.head_dim,
                                                   block.weights + first * kAttentionTile);
    }
  }

  // Keys of the next tile are prefetched while the values are read, if both tiles have the same
  // shape.
  static void add_tile(PairBlock& block, const TileStep& step) {
    const int bits = step.tile.shape->layout.format.key_bits;
    const bool next_alike =
        step.next != nullptr && step.next->shape->key_bytes == step.tile.shape->key_bytes;
    const ScoreStep* first_scores = scores_of_bits<true>(bits);
    const ScoreStep* other_scores = scores_of_bits<false>(bits);
    const AddValues* add_values_of = bits == 8    ? kAddValues<e4m3>
                                     : bits == 16 ? kAddValues<f16>
                                                  : kAddValues<float>;
    for (int first = 0; first < block.pairs; first += kStep) {
      const int left = block.pairs - first;
      const int pairs = left < kStep ? left : kStep;
      const ScoreStep* scores_of = first == 0 ? first_scores : other_scores;
      scores_of[pairs - 1](block.queries + int64_t{first} * block.head_dim, step.tile,
                           block.head_dim, block.weights + first * kAttentionTile);
    }
    LaneSoftmax<V>::template raise_maxima<false>(block);
    LaneSoftmax<V>::weigh(block, step.left);
    add_weighted(block, step, {0, block.pairs, 0}, add_values_of,
                 next_alike ? fetch_keys(*step.next) : LineFetch());
  }

  static LineFetch fetch_keys(const KvTile& tile) {
    const int64_t element = tile.shape->layout.format.key_bits / 8;
    return {tile.keys, tile.shape->key_bytes,
            std::max<int64_t>(kCacheLine, V::kValueVectors * kLanes * element)};
  }

  // Pairs [begin, end) and channels from `channel` on, for which a tile's values times
  // block.weights are added. Only the first step of pairs prefetches.
  struct Part {
    int begin;
    int end;
    int channel;
  };
  static void add_weighted(PairBlock& block, const TileStep& step, const Part& part,
                           const AddValues* add_values_of, LineFetch fetch = {}) {
    for (int first = part.begin; first < part.end; first += kStep) {
      const int left = part.end - first;
      add_values_of[(left < kStep ? left : kStep) - 1](
          {.step = step,
           .fetch = first == part.begin ? fetch : LineFetch(),
           .weights = block.weights + first * kAttentionTile,
           .corrections = block.corrections + first,
           .values = block.values + int64_t{first} * block.head_dim,
           .head_dim = block.head_dim,
           .channel = part.channel});
    }
  }
};

}  // namespace tessera
