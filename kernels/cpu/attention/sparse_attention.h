#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/code_step.h"
#include "kernels/cpu/attention/lane_attention.h"
#include "kernels/cpu/attention/line_fetch.h"
#include "kernels/cpu/pages/sparse_codec.h"

namespace tessera {

// Sparse tiles over a vector type C (sparse_lanes_*.h): loaded compressed, computed dense (MUSTAFAR,
// section 3). A token is expanded once, into the first-level cache, and serves all pairs of the
// block. Keys are expanded 16 at a time and multiplied channel by channel, so a score is a sum over
// lanes; values are expanded for the whole tile and then are a dense tile to lane_attention.h. Codes
// stay integers until their sums: of keys with queries of 16 bits, and of values as whole numbers,
// with scales in the weights.
template <class C>
struct SparseAttention {
  using V = typename C::Floats;
  using Sum = typename C::Sum;
  using Dense = LaneAttention<V>;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kTileVectors = kAttentionTile / kLanes;
  static constexpr int kTokens = 4;  // of keys that a pass keeps sums of
  static constexpr int kChannelMultiple = PairBlock::kChannelMultiple;

  // ---- queries

  static void load_query_tokens(PairBlock& block, int32_t pair, const float* query, float factor) {
    float* floats = block.token_queries[pair];
    const int count = static_cast<int>(round_up(block.head_dim, kChannelMultiple));
    V largest = V::zero();
    for (int channel = 0; channel < count; channel += kLanes) {
      V numbers = channel + kLanes <= block.head_dim ? V::load(query + channel)
                  : channel < block.head_dim         ? V::load_half(query + channel)
                                                     : V::zero();
      numbers = numbers * V::all(factor);
      numbers.store(floats + channel);
      largest = V::max(largest, V::max(numbers, V::zero() - numbers));
    }
    const float bounded = std::max(largest.highest(), kLeastLargest);
    block.query_steps[pair] = bounded / kCodeRange;
    for (int channel = 0; channel < count; channel += kLanes) {
      C::store_words(V::load(floats + channel), kCodeRange / bounded,
                     block.token_codes[pair] + channel);
    }
  }

  // ---- expansion

  // Tokens [begin, end) of 16, made dense: of f16, or of bytes that are codes. The first stands at
  // `out`, the next `stride` elements on; what a vector writes beyond a token the next one overwrites.
  static void expand(const SparseSide& side, const std::byte* tile, int begin, int end, int stride,
                     std::byte* out) {
    alignas(64) std::byte widened[kMaxHeadDim + 64];
    const int words = static_cast<int>(div_ceil(side.head_dim, 64));
    const int element = side.is_codes() ? 1 : 2;
    for (int token = begin; token < end; ++token, out += stride * element) {
      const std::byte* kept = tile + side.kept_offset(token);
      const std::byte* bitmap = tile + side.bitmap_offset(token);
      if (side.bits == 4) {
        for (int i = 0; i < side.kept; i += 64) {
          C::widen_64(kept + i / 2, widened + i);
        }
        kept = widened;
      }
      if (side.bitmap_bytes == 0) {
        __builtin_memcpy(out, kept, static_cast<size_t>(side.head_dim * element));
        if (stride > side.head_dim) {
          __builtin_memset(out + side.head_dim * element, 0,
                           static_cast<size_t>((stride - side.head_dim) * element));
        }
      } else if (side.is_codes()) {
        C::expand_bytes(kept, bitmap, words, out);
      } else {
        C::expand_halves(kept, bitmap, words, out);
      }
    }
  }

  // ---- keys

  // Scores of kPairs pairs against kTokens tokens.
  template <int kPairs>
  static void score_halves(const PairBlock& block, int first, const std::byte* keys, int stride,
                           float* out) {
    V sums[kPairs][kTokens];
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
        sums[pair][token] = V::zero();
      }
    }
    for (int channel = 0; channel < stride; channel += kLanes) {
      V loaded[kTokens];
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
        loaded[token] = V::load_f16(keys + 2 * (token * stride + channel));
      }
#pragma GCC unroll 8
      for (int pair = 0; pair < kPairs; ++pair) {
        const V query = V::load(block.token_queries[first + pair] + channel);
#pragma GCC unroll 8
        for (int token = 0; token < kTokens; ++token) {
          sums[pair][token] = V::fma(query, loaded[token], sums[pair][token]);
        }
      }
    }
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      V::sums(sums[pair]).store_4(out + pair * kAttentionTile);
    }
  }

  template <int kPairs>
  static void score_codes(const PairBlock& block, int first, const std::byte* keys, int stride,
                          float* out) {
    Sum sums[kPairs][kTokens];
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
        sums[pair][token] = Sum::zero();
      }
    }
    for (int channel = 0; channel < stride; channel += C::kSumChannels) {
      decltype(C::load_key(keys)) loaded[kTokens];
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
        loaded[token] = C::load_key(keys + token * stride + channel);
      }
#pragma GCC unroll 8
      for (int pair = 0; pair < kPairs; ++pair) {
        const auto query = C::load_query(block.token_codes[first + pair] + channel);
#pragma GCC unroll 8
        for (int token = 0; token < kTokens; ++token) {
          C::add(sums[pair][token], loaded[token], query);
        }
      }
    }
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      V totals[kTokens];
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
        totals[token] = sums[pair][token].total();
      }
      (V::sums(totals) * V::all(block.query_steps[first + pair])).store_4(out + pair * kAttentionTile);
    }
  }

  using ScoreTokens = void (*)(const PairBlock&, int, const std::byte*, int, float*);
  static ScoreTokens score_tokens(bool codes, int pairs) {
    static constexpr ScoreTokens kHalves[] = {score_halves<1>, score_halves<2>, score_halves<3>,
                                              score_halves<4>};
    static constexpr ScoreTokens kCodes[] = {score_codes<1>, score_codes<2>, score_codes<3>,
                                             score_codes<4>};
    static_assert(C::kStep <= 4);
    return (codes ? kCodes : kHalves)[pairs - 1];
  }

  // A tile's scores, into block.weights. Those of tokens outside [step.begin, step.end) may be
  // anything.
  static void score_tile(PairBlock& block, const TileStep& step) {
    const SparseSide side = sparse_keys(step.tile.shape->layout);
    const int stride = static_cast<int>(round_up(block.head_dim, kChannelMultiple));
    LineFetch fetch = fetch_ahead(step.next == nullptr ? nullptr : step.next->keys,
                                  step.next == nullptr ? 0 : step.next->shape->key_bytes);
    for (int first = 0; first < kAttentionTile; first += kKeyTile) {
      const int begin = std::max(step.begin - first, 0);
      const int end = std::min(step.end - first, kKeyTile);
      if (begin >= end) {
        continue;
      }
      const int element = side.is_codes() ? 1 : 2;
      expand(side, step.tile.keys[first / kKeyTile], begin, end, stride,
             block.expanded + begin * stride * element);
      for (int token = begin / kTokens * kTokens; token < end; token += kTokens) {
        const std::byte* keys = block.expanded + token * stride * element;
        for (int pair = 0; pair < block.pairs; pair += C::kStep) {
          const int pairs = std::min(block.pairs - pair, C::kStep);
          score_tokens(side.is_codes(), pairs)(block, pair, keys, stride,
                                               block.weights + pair * kAttentionTile + first + token);
        }
        fetch.some();
      }
    }
    if (side.is_codes()) {
      scale_scores(block, step.tile);
    }
  }

  static void scale_scores(PairBlock& block, const KvTile& tile) {
    for (int i = 0; i < kTileVectors; ++i) {
      const V scales = V::load_f16(tile.scales[i * kLanes / kKeyTile] + 2 * (i * kLanes % kKeyTile));
      for (int pair = 0; pair < block.pairs; ++pair) {
        float* scores = block.weights + pair * kAttentionTile + i * kLanes;
        (V::load(scores) * scales).store(scores);
      }
    }
  }

  // ---- values

  // Weights times the values' scales, where they have such; otherwise weights.
  static void weigh(PairBlock& block, const TileStep& step, bool codes) {
    if (!codes) {
      LaneSoftmax<V>::weigh(block);
      return;
    }
    V scales[kTileVectors];
    for (int i = 0; i < kTileVectors; ++i) {
      const std::byte* at = step.tile.scales[i * kLanes / kKeyTile] + 2 * (i * kLanes % kKeyTile);
      scales[i] = V::load_f16(at + step.tile.shape->value_scales);
    }
    for (int pair = 0; pair < block.pairs; ++pair) {
      float* weights = block.weights + pair * kAttentionTile;
      LaneSoftmax<V>::template weigh_pair<false>(
          block, pair, [&](int i, V weight) { (weight * scales[i]).store(weights + i * kLanes); });
      LaneSoftmax<V>::raise_zeros(block, pair);
    }
  }

  static void add_values(PairBlock& block, const TileStep& step) {
    const SparseSide side = sparse_values(step.tile.shape->layout);
    const int element = side.is_codes() ? 1 : 2;
    LineFetch fetch = fetch_ahead(step.next == nullptr ? nullptr : step.next->values,
                                  step.next == nullptr ? 0 : step.next->shape->value_bytes);
    KvTile dense = step.tile;
    for (int tile = 0; tile < kKeyTilesInTile; ++tile) {
      std::byte* out = block.expanded + int64_t{tile} * kKeyTile * block.head_dim * element;
      dense.values[tile] = out;
      const int begin = std::max(step.begin - tile * kKeyTile, 0);
      const int end = std::min(step.end - tile * kKeyTile, kKeyTile);
      for (int token = begin; token < end; token += kTokens) {
        expand(side, step.tile.values[tile], token, std::min(token + kTokens, end), block.head_dim,
               out + int64_t{token} * block.head_dim * element);
        fetch.some();
      }
    }
    const TileStep dense_step{dense, nullptr, step.begin, step.end, step.whole};
    Dense::add_weighted(block, dense_step,
                        side.is_codes() ? Dense::template kAddValues<int8_t>
                                        : Dense::template kAddValues<f16>,
                        nullptr);
  }

  static void add_tile(PairBlock& block, const TileStep& step) {
    score_tile(block, step);
    LaneSoftmax<V>::template raise_maxima<false>(block);
    weigh(block, step, sparse_values(step.tile.shape->layout).is_codes());
    add_values(block, step);
  }

  // While keys are read the next tile's are fetched, and while values are read the next values: a
  // call for every kTokens tokens.
  static LineFetch fetch_ahead(const std::byte* const* runs, int64_t run_bytes) {
    return runs == nullptr ? LineFetch()
                           : LineFetch(runs, run_bytes,
                                       round_up(div_ceil(run_bytes * kTokens, kKeyTile), 64));
  }
};

// What an instruction set brings, for tiles of every kind.
template <class Floats, class Codes, class Sparse>
struct TileAttention {
  static void add_tile(PairBlock& block, const TileStep& step) {
    const KvFormat format = step.tile.shape->layout.format;
    format.is_codes()    ? Codes::add_tile(block, step)
    : format.is_sparse() ? Sparse::add_tile(block, step)
                         : Floats::add_tile(block, step);
  }
  static void score_tile(PairBlock& block, const TileStep& step) {
    const KvFormat format = step.tile.shape->layout.format;
    format.is_codes()    ? Codes::score_tile(block, step)
    : format.is_sparse() ? Sparse::score_tile(block, step)
                         : Floats::score_tile(block, step);
  }
};

}  // namespace tessera
