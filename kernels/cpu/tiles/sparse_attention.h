#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/pages/sparse_codec.h"
#include "kernels/cpu/tiles/lane_attention.h"
#include "kernels/cpu/tiles/line_fetch.h"
#include "kernels/kv/code_step.h"

namespace tessera {

// Attention over sparse tiles, written over a vector type C (sparse_lanes_*.h). Tiles are loaded
// compressed and computed dense. A token is expanded once, into the L1 cache,
// and serves all pairs of the block.
//
// Keys are token-major, so a vector holds 16 bytes of a key for each of a few pairs. That is a
// *quarter* of the lanes for each of 4 pairs in AVX-512, and half for each of 2 in AVX2. 16 bytes
// of the key are broadcast to all of them, and at the end only the lanes of a quarter are added up.
// Keys that are codes stay integers until then, multiplied by queries of 16 bits. Values that are
// codes are multiplied as integers; their scales are in the weights.
// Requires: as AttentionKernels.
template <class C>
struct SparseAttention {
  using V = typename C::Floats;
  using Dense = LaneAttention<V>;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kTileVectors = kAttentionTile / kLanes;
  static constexpr int kQuarters = kLanes / 4;  // pairs in a vector
  static constexpr int kTokens = 8;             // key tokens whose sums one pass keeps
  static constexpr int kUnitBytes = 16;         // bytes of a key for one quarter

  // ---- queries

  // Stores the query in quarter pair % kQuarters of its vectors, 16 bytes at a time.
  static void load_query_tokens(PairBlock& block, int32_t pair, const float* query, float factor) {
    const int count = static_cast<int>(round_up(block.head_dim, 64));
    if (pair % kQuarters == 0) {  // quarters of missing pairs stay 0
      __builtin_memset(floats_of(block, pair), 0, static_cast<size_t>(count * kLanes));
      __builtin_memset(codes_of(block, pair), 0, static_cast<size_t>(count * kLanes / 2));
    }
    float largest = 0;
    for (int channel = 0; channel < block.head_dim; ++channel) {
      const float number = query[channel] * factor;
      floats_of(block, pair)[quarter_place(pair, channel, 4)] = number;
      largest = std::max(largest, std::abs(number));
    }
    const float bounded = std::max(largest, kMinLargest);
    const float inverse = kCodeRange / bounded;
    block.token_steps[pair] = bounded / kCodeRange;
    for (int channel = 0; channel < block.head_dim; ++channel) {
      const float number = floats_of(block, pair)[quarter_place(pair, channel, 4)];
      codes_of(block, pair)[quarter_place(pair, channel, 8)] =
          static_cast<int16_t>(__builtin_rintf(number * inverse));
    }
  }
  static int quarter_place(int pair, int channel, int unit_channels) {
    return (channel / unit_channels * kQuarters + pair % kQuarters) * unit_channels +
           channel % unit_channels;
  }
  static float* floats_of(PairBlock& block, int pair) {
    return block.token_queries[pair / kQuarters * kQuarters];
  }
  static int16_t* codes_of(PairBlock& block, int pair) {
    return block.token_codes[pair / kQuarters * kQuarters];
  }

  // ---- expansion

  // Keys (values) of a tile in the form that the loops below read: each token has a bitmap, and
  // codes are bytes.
  struct Packed {
    const std::byte* kept[kKeyTilesInTile];
    const std::byte* bitmaps[kKeyTilesInTile];
    int64_t kept_bytes;  // stride between tokens
    int64_t bitmap_bytes;
    int words;  // 64-bit words in a bitmap
  };

  // Widens codes of 4 bits into block.widened. Tokens without bitmaps behind them are copied there
  // too if head_dim is not a multiple of 64, because vectors must not read beyond their end.
  static Packed pack(PairBlock& block, const SparseSide& side, const std::byte* const* tiles,
                     int begin, int end) {
    Packed packed{
        {}, {}, side.kept_bytes, side.bitmap_bytes, static_cast<int>(div_ceil(side.head_dim, 64))};
    const bool copies = side.bits != 4 && side.bitmap_bytes == 0 && side.head_dim % 64 != 0;
    if (side.bits == 4) {
      packed.kept_bytes = round_up(side.kept, 64);
    }
    if (side.bitmap_bytes == 0) {
      __builtin_memset(block.all_kept, 0, sizeof(block.all_kept));
      __builtin_memset(block.all_kept, 0xff, static_cast<size_t>(side.head_dim / 8));
    }
    for (int tile = begin / kKeyTile; tile * kKeyTile < end; ++tile) {
      std::byte* const copy = block.widened + int64_t{tile} * kKeyTile * packed.kept_bytes;
      packed.kept[tile] = side.bits == 4 || copies ? copy : tiles[tile];
      packed.bitmaps[tile] =
          side.bitmap_bytes == 0 ? block.all_kept : tiles[tile] + side.bitmap_offset(0);
      if (copies) {
        __builtin_memcpy(copy, tiles[tile], static_cast<size_t>(kKeyTile * side.kept_bytes));
      }
      for (int64_t i = 0; side.bits == 4 && i < kKeyTile * packed.kept_bytes; i += 64) {
        const int64_t token = i / packed.kept_bytes;
        C::widen_64(
            tiles[tile] + side.kept_offset(static_cast<int32_t>(token)) + i % packed.kept_bytes / 2,
            copy + i);
      }
    }
    return packed;
  }

  // A vector may write beyond its token; the next token overwrites that.
  template <class T>
  [[gnu::always_inline]] static void expand(const Packed& packed, int token, std::byte* out) {
    const int tile = token / kKeyTile;
    const int lane = token % kKeyTile;
    const std::byte* kept = packed.kept[tile] + lane * packed.kept_bytes;
    const std::byte* bitmap = packed.bitmaps[tile] + lane * packed.bitmap_bytes;
    if constexpr (sizeof(T) == 1) {
      C::expand_bytes(kept, bitmap, packed.words, out);
    } else {
      C::expand_halves(kept, bitmap, packed.words, out);
    }
  }

  // ---- keys

  // Writes the scores of kQuarters pairs against kTokens tokens, `stride` bytes apart.
  template <class Product>
  static void score_tokens(const std::byte* queries, const std::byte* keys, int64_t stride,
                           float* out) {
    typename Product::Sum sums[kTokens];
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      sums[token] = Product::zero();
    }
    for (int64_t at = 0; at < stride; at += kUnitBytes) {
      const auto query = Product::load(queries + at * kQuarters);
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
        sums[token] = Product::add(sums[token], query, keys + token * stride + at);
      }
    }
#pragma GCC unroll 2
    for (int four = 0; four < kTokens; four += 4) {
      const V totals[4] = {Product::total(sums[four]), Product::total(sums[four + 1]),
                           Product::total(sums[four + 2]), Product::total(sums[four + 3])};
      V::quarter_sums(totals).store_quarters(out + four, kAttentionTile);
    }
  }

  // Expands keys of floats to f32, and codes to words of 16 bits.
  template <class T>
  static void score_tokens_of(PairBlock& block, const TileStep& step, LineFetch fetch) {
    using Product =
        std::conditional_t<sizeof(T) == 1, typename C::CodeProduct, typename C::FloatProduct>;
    const SparseSide side = sparse_keys(step.tile.shape->layout);
    const Packed packed = pack(block, side, step.tile.keys, step.begin, step.end);
    const int channels = 64 * packed.words;
    const int64_t stride = channels * int64_t{2 * sizeof(T)};
    alignas(64) std::byte dense[kMaxHeadDim * sizeof(T)];
    for (int first = step.begin / kTokens * kTokens; first < step.end; first += kTokens) {
      // Two buffers alternate, so that a core expands these tokens while it multiplies the previous
      // ones.
      std::byte* keys = block.expanded + first / kTokens % 2 * kTokens * stride;
      const int end = std::min(step.end, first + kTokens);
      for (int token = std::max(step.begin, first); token < end; ++token) {
        expand<T>(packed, token, dense);
        C::template widen<T>(dense, channels, keys + (token - first) * stride);
      }
      for (int pair = 0; pair < block.pairs; pair += kQuarters) {
        const auto* queries = sizeof(T) == 1
                                  ? reinterpret_cast<const std::byte*>(codes_of(block, pair))
                                  : reinterpret_cast<const std::byte*>(floats_of(block, pair));
        score_tokens<Product>(queries, keys, stride, block.weights + pair * kAttentionTile + first);
      }
      fetch.some();
    }
  }

  // Writes a tile's scores to block.weights. Scores of tokens outside [step.begin, step.end) are
  // undefined.
  static void score_tile(PairBlock& block, const TileStep& step) {
    const LineFetch fetch = fetch_ahead(step.next == nullptr ? nullptr : step.next->keys,
                                        step.next == nullptr ? 0 : step.next->shape->key_bytes);
    if (sparse_keys(step.tile.shape->layout).is_codes()) {
      score_tokens_of<int8_t>(block, step, fetch);
      scale_scores(block, step.tile);
    } else {
      score_tokens_of<f16>(block, step, fetch);
    }
  }

  static void scale_scores(PairBlock& block, const KvTile& tile) {
    for (int i = 0; i < kTileVectors; ++i) {
      const V scales =
          V::load_f16(tile.scales[i * kLanes / kKeyTile] + 2 * (i * kLanes % kKeyTile));
      for (int pair = 0; pair < block.pairs; ++pair) {
        float* scores = block.weights + pair * kAttentionTile + i * kLanes;
        (V::load(scores) * V::all(block.token_steps[pair]) * scales).store(scores);
      }
    }
  }

  // ---- values

  // Turns scores into weights, and weights into weights times value scales if values are codes.
  // Products of tokens that do not exist are undefined.
  static void weigh(PairBlock& block, const TileStep& step, bool codes) {
    LaneSoftmax<V>::weigh(block, step.left);
    for (int i = 0; codes && i < kTileVectors; ++i) {
      const std::byte* at = step.tile.scales[i * kLanes / kKeyTile] + 2 * (i * kLanes % kKeyTile);
      const V scales = V::load_f16(at + step.tile.shape->value_scales);
      for (int pair = 0; pair < block.pairs; ++pair) {
        float* weights = block.weights + pair * kAttentionTile + i * kLanes;
        (V::load(weights) * scales).store(weights);
      }
    }
  }

  // Adds the first kWide channels of kPairs pairs. Expansion uses one execution port and
  // multiplication two, so tokens are expanded kAhead tokens before they are multiplied.
  static constexpr int kWide = V::kValueVectors * kLanes;
  template <class T, int kPairs>
  static void add_first_channels(PairBlock& block, const TileStep& step, const Packed& packed,
                                 LineFetch fetch) {
    constexpr int kVectors = V::kValueVectors;
    constexpr int kAhead = 4;
    const int64_t token_bytes = block.head_dim * int64_t{sizeof(T)};
    V sums[kPairs][kVectors];
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      const V correction = V::all(block.corrections[pair]);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        sums[pair][i] =
            V::load(block.values + int64_t{pair} * block.head_dim + i * kLanes) * correction;
      }
    }
    int expanded = step.begin;
    for (; expanded < std::min(step.begin + kAhead, step.end); ++expanded) {
      expand<T>(packed, expanded, block.expanded + expanded * token_bytes);
    }
    for (int token = step.begin; token < step.end; ++token) {
      if (expanded < step.end) {
        expand<T>(packed, expanded, block.expanded + expanded * token_bytes);
        ++expanded;
      }
      if (token % kTokens == 0) {
        fetch.some();
      }
      const T* in = reinterpret_cast<const T*>(block.expanded + token * token_bytes);
      V loaded[kVectors];
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        loaded[i] = Dense::load(in + i * kLanes);
      }
#pragma GCC unroll 8
      for (int pair = 0; pair < kPairs; ++pair) {
        const V weight = V::all(block.weights[pair * kAttentionTile + token]);
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
          sums[pair][i] = V::fma(weight, loaded[i], sums[pair][i]);
        }
      }
    }
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        sums[pair][i].store(block.values + int64_t{pair} * block.head_dim + i * kLanes);
      }
    }
  }

  template <class T>
  static void add_values_of(PairBlock& block, const TileStep& step, LineFetch fetch) {
    using AddFirst = void (*)(PairBlock&, const TileStep&, const Packed&, LineFetch);
    static constexpr AddFirst kAddFirst[] = {add_first_channels<T, 1>, add_first_channels<T, 2>,
                                             add_first_channels<T, 3>, add_first_channels<T, 4>};
    const Packed packed =
        pack(block, sparse_values(step.tile.shape->layout), step.tile.values, step.begin, step.end);
    const int64_t token_bytes = block.head_dim * int64_t{sizeof(T)};
    const int pairs = block.head_dim < kWide ? 0 : std::min(block.pairs, 4);
    if (pairs > 0) {
      kAddFirst[pairs - 1](block, step, packed, fetch);
    } else {
      for (int token = step.begin; token < step.end; ++token) {
        expand<T>(packed, token, block.expanded + token * token_bytes);
      }
    }
    KvTile dense = step.tile;
    for (int tile = 0; tile < kKeyTilesInTile; ++tile) {
      dense.values[tile] = block.expanded + tile * kKeyTile * token_bytes;
    }
    const TileStep rest{dense, nullptr, step.begin, step.end, step.whole};
    Dense::add_weighted(block, rest, {0, pairs, kWide}, Dense::template kAddValues<T>);
    Dense::add_weighted(block, rest, {pairs, block.pairs, 0}, Dense::template kAddValues<T>);
  }

  static void add_tile(PairBlock& block, const TileStep& step) {
    score_tile(block, step);
    LaneSoftmax<V>::template raise_maxima<false>(block);
    const bool codes = sparse_values(step.tile.shape->layout).is_codes();
    weigh(block, step, codes);
    const LineFetch fetch = fetch_ahead(step.next == nullptr ? nullptr : step.next->values,
                                        step.next == nullptr ? 0 : step.next->shape->value_bytes);
    (codes ? add_values_of<int8_t> : add_values_of<f16>)(block, step, fetch);
  }

  // Prefetches the next tile's keys while keys are read, and its values while values are read.
  // Expects a call for every kTokens tokens.
  static LineFetch fetch_ahead(const std::byte* const* runs, int64_t run_bytes) {
    return runs == nullptr
               ? LineFetch()
               : LineFetch(runs, run_bytes, round_up(div_ceil(run_bytes * kTokens, kKeyTile), 64));
  }
};

// Tile kernels of one instruction set, for all page formats.
template <class Floats, class Codes, class Sparse>
struct TileAttention {
  static void add_tile(PairBlock& block, const TileStep& step) {
    const KvFormat format = step.tile.shape->layout.format;
    format.is_codes()    ? Codes::add_tile(block, step)
    : format.is_sparse() ? Sparse::add_tile(block, step)
                         : Floats::add_tile(block, step);
  }
  static void weigh_tile(PairBlock& block, const TileStep& step) {
    const KvFormat format = step.tile.shape->layout.format;
    format.is_codes()    ? Codes::score_tile(block, step)
    : format.is_sparse() ? Sparse::score_tile(block, step)
                         : Floats::score_tile(block, step);
    Floats::Softmax::template raise_maxima<false>(block);
    Floats::Softmax::weigh(block, nullptr);
  }
};

}  // namespace tessera
