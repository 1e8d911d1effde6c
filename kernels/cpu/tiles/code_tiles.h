#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/simd/code_lanes_avx512.h"
#include "kernels/cpu/simd/tile_registers.h"
#include "kernels/cpu/tiles/code_attention.h"
#include "kernels/cpu/tiles/pair_block.h"

namespace tessera::amx {

// Attention over tiles of codes for blocks of several pairs. AMX multiplies 16 rows of numbers by
// 16 lines of codes at once. A line of a page is a row of the second operand, without repacking.
// The rows of the first operand are the two parts of 8 pairs, high and low in turn. The sums are
// the same integers as in CodeAttention, followed by the same arithmetic. Results are therefore the
// same bit for bit. Codes of less than 8 bits are unpacked once for all pairs.
// Requires: the thread's tile registers are configured (begin_tiles); at least kFewestPairs pairs;
// otherwise as AttentionKernels.
struct CodeTiles {
  using Vectors = CodeAttention<avx512::CodeLanes>;
  using V = avx512::Lanes;
  using Sum = avx512::CodeLanes::Sum;
  static constexpr int kStep = kTileRows / PairBlock::kParts;  // pairs
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kLineBytes = KvPageLayout::kLineBytes;
  static constexpr int kTileBytes = kTileRows * kLineBytes;  // bytes of a register
  static constexpr int kTiles = 4;                           // registers of sums
  static_assert(kTiles == kKeyTilesInTile);

  static constexpr int64_t kMaxBytes = int64_t{kMaxHeadDim} * kAttentionTile;
  static_assert(sizeof(PairBlock::expanded) >= 2 * kMaxBytes);

  // Minimum number of pairs in a block. With fewer pairs, half of a register could stay empty.
  static constexpr int kFewestPairs = kStep;

  // ---- codes, one byte each

  // Unpacks the codes of a tile's keys (values). Sub-line s of a key tile goes to place(key tile,
  // s). The same lines of the next tile are prefetched meanwhile.
  template <int kBits, class Place>
  static void unpack(const std::byte* const* key_tiles, const std::byte* const* next, int64_t bytes,
                     Place place) {
    constexpr int kShared = Vectors::kShared<kBits>;
    constexpr int kUnitBytes = Vectors::kUnitLines<kBits> * kLineBytes;
    const auto units = static_cast<uint32_t>(bytes / kUnitBytes);
    for (uint32_t key_tile = 0; key_tile < kKeyTilesInTile; ++key_tile) {
      const std::byte* from = key_tiles[key_tile];
      const std::byte* ahead = next[key_tile];
#pragma GCC unroll 4
      for (uint32_t unit = 0; unit < units; ++unit) {
        const std::byte* packed = from + unit * kUnitBytes;
        for (int line = 0; line < kUnitBytes; line += kLineBytes) {
          __builtin_prefetch(ahead + unit * kUnitBytes + line);
        }
        [&]<int... kSub>(std::integer_sequence<int, kSub...>) {
          (_mm512_store_si512(place(key_tile, unit * kShared + kSub),
                              Vectors::codes_at<kBits, kSub>(packed).bytes),
           ...);
        }
        (std::make_integer_sequence<int, kShared>{});
      }
    }
  }
  template <class Place>
  static void unpack(int bits, const std::byte* const* key_tiles, const std::byte* const* next,
                     int64_t bytes, Place place) {
    switch (bits) {
      case 8:
        return unpack<8>(key_tiles, next, bytes, place);
      case 6:
        return unpack<6>(key_tiles, next, bytes, place);
      case 4:
        return unpack<4>(key_tiles, next, bytes, place);
      case 3:
        return unpack<3>(key_tiles, next, bytes, place);
      case 2:
        return unpack<2>(key_tiles, next, bytes, place);
      default:
        return unpack<1>(key_tiles, next, bytes, place);
    }
  }

  // Keys: [blocks of 64 channels][key tiles], one register each. One register of queries is
  // multiplied by all key tiles of a block of channels.
  static std::byte* keys(PairBlock& block) {
    return block.expanded;
  }
  static void unpack_keys(PairBlock& block, const TileStep& step) {
    const KvTile& next = step.next == nullptr ? step.tile : *step.next;
    unpack(step.tile.shape->layout.format.key_bits, step.tile.keys, next.keys,
           step.tile.shape->key_bytes, [to = keys(block)](uint32_t key_tile, uint32_t sub_line) {
             return to + (sub_line / kTileRows * kKeyTilesInTile + key_tile) * kTileBytes +
                    sub_line % kTileRows * kLineBytes;
           });
  }

  // Values: [blocks of 16 channels], one register each, with all 64 tokens.
  static std::byte* values(PairBlock& block) {
    return block.expanded + kMaxBytes;
  }
  static void unpack_values(PairBlock& block, const TileStep& step) {
    const KvTile& next = step.next == nullptr ? step.tile : *step.next;
    unpack(step.tile.shape->layout.format.value_bits, step.tile.values, next.values,
           step.tile.shape->value_bytes,
           [to = values(block)](uint32_t key_tile, uint32_t sub_line) {
             return to + sub_line / 4 * kTileBytes + (4 * key_tile + sub_line % 4) * kLineBytes;
           });
  }

  // ---- products

  // Sums of registers 0 to 3: [register][pair][part][16].
  struct Sums {
    alignas(64) int32_t of[kTiles][kStep][PairBlock::kParts][16];

    void store() {
      _tile_stored(0, of[0], kLineBytes);
      _tile_stored(1, of[1], kLineBytes);
      _tile_stored(2, of[2], kLineBytes);
      _tile_stored(3, of[3], kLineBytes);
    }
    V total(int tile, int pair) const {
      const int32_t* parts = of[tile][pair][0];
      return Sum{_mm512_load_si512(parts), _mm512_load_si512(parts + 16)}.total();
    }
  };

  static void clear() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  // Multiplies the numbers in register 4 by kTiles registers of codes.
  static void multiply(const std::byte* codes) {
    _tile_loadd(5, codes, kLineBytes);
    _tile_dpbsud(0, 4, 5);
    _tile_loadd(6, codes + kTileBytes, kLineBytes);
    _tile_dpbsud(1, 4, 6);
    _tile_loadd(5, codes + 2 * kTileBytes, kLineBytes);
    _tile_dpbsud(2, 4, 5);
    _tile_loadd(6, codes + 3 * kTileBytes, kLineBytes);
    _tile_dpbsud(3, 4, 6);
  }

  // Writes the scores of pairs [begin, end), at most kStep. Codes beyond head_dim are multiplied by
  // queries that are 0.
  static void scores(PairBlock& block, const KvTile& tile, int begin, int end) {
    clear();
    const std::byte* codes = keys(block);
    for (int channel = 0; channel < block.head_dim; channel += 64) {
      _tile_loadd(4, block.query_codes[begin][0] + channel / 4,
                  PairBlock::kQueryQuads * sizeof(int32_t));
      multiply(codes);
      codes += kTiles * kTileBytes;
    }
    Sums sums;
    sums.store();
    for (int i = 0; i < kKeyTilesInTile; ++i) {
      const V scale = V::load_f16(tile.scales[i]);
      const V zero = tile.shape->keys_have_zeros
                         ? V::load_f16(tile.scales[i] + tile.shape->key_zeros)
                         : scale * V::all(-kCodebookZero);
      for (int pair = begin; pair < end; ++pair) {
        const V of_zero = zero * V::all(block.query_sums[pair]);
        const V dot = sums.total(i, pair - begin) * V::all(block.query_steps[pair]);
        V::fma(dot, scale, of_zero).store(block.weights + pair * kAttentionTile + i * kKeyTile);
      }
    }
  }

  static void add_values(PairBlock& block, int begin, int end) {
    _tile_loadd(4, block.weight_codes[begin][0], PairBlock::kWeightQuads * sizeof(int32_t));
    for (int channel = 0; channel < block.head_dim; channel += kTiles * kKeyTile) {
      clear();
      multiply(values(block) + channel / kKeyTile * kTileBytes);
      Sums sums;
      sums.store();
      for (int pair = begin; pair < end; ++pair) {
        add_channels(block, pair, channel, sums, pair - begin);
      }
    }
  }

  static void add_channels(PairBlock& block, int pair, int channel, const Sums& sums, int row) {
    const V correction = V::all(block.corrections[pair]);
    const V step = V::all(block.weight_steps[pair]);
    float* values = block.values + int64_t{pair} * block.head_dim + channel;
    const int left = block.head_dim - channel;
#pragma GCC unroll 4
    for (int i = 0; i < kTiles; ++i) {
      const int at = i * kKeyTile;
      if (at + kKeyTile <= left) {
        const V before = V::load(values + at) * correction;
        V::fma(sums.total(i, row), step, before).store(values + at);
      } else if (at < left) {
        const V before = V::load_half(values + at) * correction;
        V::fma(sums.total(i, row), step, before).store_half(values + at);
      }
    }
  }

  // ---- a tile

  // Each step runs from scores to values, so that its numbers stay in the L1 cache. The compiler
  // does not see the memory that tile registers are loaded from. The fences therefore force all
  // earlier stores.
  static void add_tile(PairBlock& block, const TileStep& step) {
    unpack_keys(block, step);
    unpack_values(block, step);
    for (int begin = 0; begin < block.pairs; begin += kStep) {
      const int end = std::min(block.pairs, begin + kStep);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      scores(block, step.tile, begin, end);
      Vectors::weigh(block, step, begin, end);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      add_values(block, begin, end);
    }
    if (step.left != nullptr) {
      LaneSoftmax<V>::leave_maxima(block, step.left);
    }
  }
};

}  // namespace tessera::amx
