#pragma once

#include <type_traits>

#include "kernels/cpu/linear/coded_panel.h"
#include "kernels/cpu/linear/tile.h"

// Tile of blocks of integers. A block's sum of products is an exact 32-bit integer. It then becomes
//   sum += (float(block's sum) * weight scale) * activation scale
//   sum += weight minimum * (activation scale * sum of activations)   if the format has a minimum
// with fused multiply-adds, in ascending order of the blocks. With superblocks, the scale is the
// product of the superblock's and the block's factor, which is exact, and so is the minimum. The
// minimum of a zero point is its negative times the scale, which is exact too. The last sum is
// multiplied with the row scale. All instruction sets and tiles have this order, so they agree bit
// for bit.
//
// Formats that differ in their groups alone share one tile (group_tile()): a group is a run of
// blocks whose length the tile is told.
//
// Simd::Bytes and Simd::Nibbles multiply the codes. A line is a 32-bit unit of each output; it is
// unpacked into kParts vectors, and each is multiplied with 32 bits of activations.
namespace tessera {

template <class Simd, WeightFormat kFormat>
using Codes = std::conditional_t<encoding(kFormat).bits == 8, typename Simd::Bytes,
                                 typename Simd::template Nibbles<kFormat>>;

// Adds the bits above the fourth of four inputs, part `part` of a block, to their low nibbles.
template <class Simd, int kHighBits>
TESSERA_INLINE typename Simd::Ints add_high(typename Simd::Ints low, const std::byte* high,
                                            int part) {
  constexpr int32_t kMask = ((1 << kHighBits) - 1) * 0x10101010;
  const int shift = 4 - kHighBits * part;
  const typename Simd::Ints bits = Simd::load_units(high);
  return Simd::or_masked(
      low, shift >= 0 ? Simd::shift_left(bits, shift) : Simd::shift_right(bits, -shift), kMask);
}

// Returns: the format whose tile serves `format`.
constexpr WeightFormat group_tile(WeightFormat format) {
  const WeightEncoding stored = encoding(format);
  if (stored.group == 0 || !stored.is_coded()) {
    return format;
  }
  return stored.bits == 8 ? WeightFormat::int8_group128
         : stored.zero    ? WeightFormat::int4_zero128
                          : WeightFormat::int4_group128;
}

// Multiplies finished sums with the scales at the start of a panel.
template <class Simd, int R, int V>
TESSERA_INLINE void scale_rows(const LinearTile& tile, typename Simd::Floats (&sums)[R][V]) {
  const Slice<Simd, V> scales(tile, 0);
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const typename Simd::Floats scale = Simd::to_bits(Simd::load_units(scales.vectors[v]));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sums[r][v] = Simd::multiply(sums[r][v], scale);
    }
  }
}

// Sums of a tile between blocks.
template <class Simd, int R, int V, bool kInRegisters, bool kHasRowScales>
struct BlockTotals {
  typename Simd::Floats values[R][V];

  TESSERA_INLINE explicit BlockTotals(const LinearTile& tile) { start<Simd, R, V>(tile, values); }
  TESSERA_INLINE typename Simd::Floats get(int r, int v) const { return values[r][v]; }
  TESSERA_INLINE void set(int r, int v, typename Simd::Floats value) { values[r][v] = value; }
  TESSERA_INLINE void finish(const LinearTile& tile) {
    if (!tile.ends) {
      store_sums<Simd, R, V>(tile, values);
      return;
    }
    if constexpr (kHasRowScales) {
      scale_rows<Simd, R, V>(tile, values);
    }
    write<Simd, R, V>(tile, values);
  }
};

// Tiles whose integer sums fill the registers have their totals in `partial`, which is in L1.
template <class Simd, int R, int V, bool kHasRowScales>
struct BlockTotals<Simd, R, V, false, kHasRowScales> {
  const LinearTile& tile;

  TESSERA_INLINE explicit BlockTotals(const LinearTile& own) : tile(own) {
    if (tile.begins) {
      typename Simd::Floats zeros[R][V];
      start<Simd, R, V>(tile, zeros);
      store_sums<Simd, R, V>(tile, zeros);
    }
  }
  TESSERA_INLINE typename Simd::Floats get(int r, int v) const {
    return Simd::to_bits(Simd::load_units(partial_at<Simd, V>(tile, r, v)));
  }
  TESSERA_INLINE void set(int r, int v, typename Simd::Floats value) {
    __builtin_memcpy(partial_at<Simd, V>(tile, r, v), &value, sizeof(value));
  }
  TESSERA_INLINE void finish(const LinearTile& /*tile*/) {
    if (!tile.ends) {
      return;
    }
    typename Simd::Floats values[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        values[r][v] = get(r, v);
      }
    }
    if constexpr (kHasRowScales) {
      scale_rows<Simd, R, V>(tile, values);
    }
    write<Simd, R, V>(tile, values);
  }
};

template <class Simd, WeightFormat kFormat, int R, int V, bool kIsTall>
struct BlockTile {
  using Ints = typename Simd::Ints;
  using Floats = typename Simd::Floats;
  using Codes = tessera::Codes<Simd, kFormat>;

  static constexpr CodedPanel kPlaces{kFormat};
  static constexpr bool kHasMinimum = kPlaces.stored.minimum;
  static constexpr bool kHasSuperblocks = kPlaces.stored.superblock > 0;
  static constexpr bool kHasGroups = kPlaces.stored.group > 0;
  static constexpr int kParts = Codes::kParts;
  static constexpr int kLines = kPlaces.stored.block / Codes::kLineInputs;
  static constexpr int kScaleBytes = kPlaces.scale_bytes();
  static constexpr int kFactorBytes = kPlaces.factor_bytes();
  static constexpr int kHighBytes = kPlaces.high_bytes();
  static constexpr int kBlockBytes = kPlaces.block_bytes();
  static constexpr int kRowCodes = kLines * kParts * 4;  // bytes of a row's codes in a block
  static constexpr int kRowBytes = kRowCodes + 8;
  // Wide tiles of more than two rows compute so long that weights must be fetched earlier.
  static constexpr int kFetchFurther = R > 2 ? 4096 : 0;
  // Integer sums, totals, and the registers of a line.
  static constexpr bool kInRegisters = 2 * R * V + 8 <= Simd::kRegisters;

  Ints sums[R][V];
  Slice<Simd, V> slice;  // the codes of a block
  Rows<R> rows;
  Fetch<Simd, V, kIsTall> fetch;
  int64_t before;  // bytes of earlier blocks with the same scale
  int64_t group_bytes;

  // Requires: a superblock starts with the block.
  TESSERA_INLINE BlockTile(const LinearTile& tile, int64_t first_block)
      : slice(tile, tile.first_byte + kFactorBytes),
        rows(tile, first_block * kRowBytes),
        fetch(tile, Codes::kLineInputs / 4),
        before(kHasGroups ? tile.scale_before : 0),
        group_bytes(tile.scale_bytes) {}

  TESSERA_INLINE const std::byte* scales(int v) const {
    return slice.vectors[v] - slice.lane[v] * 2 - kFactorBytes - before - kScaleBytes;
  }
  TESSERA_INLINE const std::byte* factors(int v) const {
    return slice.vectors[v] - slice.lane[v] * 3 - kFactorBytes;
  }
  // Returns: scales (which = 0) or minimums (1).
  TESSERA_INLINE Floats numbers(int v, int which) const {
    if constexpr (kPlaces.stored.zero) {
      const std::byte* zeros = scales(v) - slice.lane[v] + kPanelRows * 2;
      const Floats scale = Simd::load_f16(scales(v));
      return which == 0 ? scale : Simd::multiply(scale, Simd::load_factors(zeros));
    }
    const Floats own = Simd::load_f16(scales(v) + which * kPanelRows * 2);
    if constexpr (kHasSuperblocks) {
      return Simd::multiply(own, Simd::load_factors(factors(v) + which * kPanelRows));
    }
    return own;
  }
  TESSERA_INLINE const std::byte* correction(int r) const { return rows.unit(r) + kRowCodes + 4; }

  TESSERA_INLINE void start() {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        sums[r][v] = Codes::start(correction(r));
      }
    }
  }

  TESSERA_INLINE Ints input(int r, int line, int part) const {
    return Simd::broadcast_unit(rows.unit(r) + (line * kParts + part) * 4);
  }
  TESSERA_INLINE void unpack(int v, int line, Ints (&weights)[kParts]) const {
    const std::byte* high = slice.vectors[v];
    Codes::unpack(high + kHighBytes + line * kBytesPerUnitRow, high, line, weights);
  }
  // Registers keep the fewer of weights and inputs.
  TESSERA_INLINE void multiply_line(int line) {
    fetch.next(slice.vectors, kHighBytes + line * kBytesPerUnitRow + kFetchFurther);
    if constexpr (V <= R) {
      Ints weights[V][kParts];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        unpack(v, line, weights[v]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          const Ints in = input(r, line, part);
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) {
            sums[r][v] = Codes::dot(sums[r][v], weights[v][part], in);
          }
        }
      }
    } else {
      Ints in[R][kParts];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          in[r][part] = input(r, line, part);
        }
      }
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        Ints weights[kParts];
        unpack(v, line, weights);
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            sums[r][v] = Codes::dot(sums[r][v], weights[part], in[r][part]);
          }
        }
      }
    }
  }

  template <class Totals>
  TESSERA_INLINE void add_to(Totals& totals) {
    Floats scale[V];
    Floats minimum[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      scale[v] = numbers(v, 0);
      minimum[v] = kHasMinimum ? numbers(v, 1) : scale[v];
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Floats in_scale = Simd::to_bits(Simd::broadcast_unit(rows.unit(r) + kRowCodes));
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const Ints sum = Codes::finish(sums[r][v], correction(r));
        const Floats scaled = Simd::multiply(Simd::to_floats(sum), scale[v]);
        Floats total = Simd::multiply_add(scaled, in_scale, totals.get(r, v));
        if constexpr (kHasMinimum) {
          const Floats in_sum = Simd::to_bits(Simd::broadcast_unit(correction(r)));
          total = Simd::multiply_add(minimum[v], in_sum, total);
        }
        totals.set(r, v, total);
      }
    }
  }

  // Prefetches the scales and high bits that follow a block's lines of codes.
  TESSERA_INLINE void fetch_scales() {
    if constexpr (kIsTall) {
      Simd::prefetch(fetch.ahead - kBytesPerLine);
    } else {
      constexpr int kFurther = kFetchFurther + Simd::kPrefetchBytes;
      Simd::prefetch(slice.vectors[0] - kFactorBytes - kScaleBytes + kFurther);
      Simd::prefetch(slice.vectors[V - 1] - kFactorBytes - kScaleBytes + kFurther);
      if constexpr (kHighBytes > 0) {
        fetch.next(slice.vectors, kFetchFurther);
      }
    }
  }

  TESSERA_INLINE void advance() {
    fetch_scales();
    before += kBlockBytes;
    int64_t step = kBlockBytes;
    if (before == (kHasGroups ? group_bytes : kPlaces.blocks_of_a_scale() * kBlockBytes)) {
      before = 0;
      step += kScaleBytes;
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      slice.vectors[v] += step;
    }
    rows.advance(kRowBytes);
  }
};

template <class Simd, WeightFormat kFormat, int R, int V, bool kIsTall>
void multiply_blocks(const LinearTile& tile) {
  using Tile = BlockTile<Simd, kFormat, R, V, kIsTall>;
  constexpr int kUnits = encoding(kFormat).block / 4;
  BlockTotals<Simd, R, V, Tile::kInRegisters, encoding(kFormat).row_scale> totals(tile);
  Tile own(tile, tile.first_unit / kUnits);
  fetch_outputs<Simd, R, V>(tile);
  for (int64_t block = 0; block < tile.units / kUnits; ++block) {
    own.start();
#pragma GCC unroll 8
    for (int line = 0; line < Tile::kLines; ++line) {
      own.multiply_line(line);
    }
    own.add_to(totals);
    own.advance();
  }
  totals.finish(tile);
}

}  // namespace tessera
