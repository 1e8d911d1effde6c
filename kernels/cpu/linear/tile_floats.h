#pragma once

#include "kernels/cpu/linear/tile.h"

// Tiles of floating-point formats. Sums stay in registers from the first input to the last. A unit
// of weights is loaded in Simd::kParts vectors, and each is multiplied with 32 bits of activations.
namespace tessera {

template <class Simd, WeightFormat kFormat, int R, int V, bool kIsTall>
void multiply_floats(const LinearTile& tile) {
  typename Simd::Floats sums[R][V];
  constexpr int kParts = Simd::template kParts<kFormat>;
  constexpr int kUnitBytes = kFormat == WeightFormat::f16 ? 2 : 4;
  constexpr int64_t kRowBytes = kBytesPerUnitRow / 4 * kUnitBytes;
  start<Simd, R, V>(tile, sums);
  Slice<Simd, V, kUnitBytes> slice(tile, tile.first_unit * kRowBytes);
  Rows<R> rows(tile, 4 * kParts * tile.first_unit);
  fetch_outputs<Simd, R, V>(tile);
  Fetch<Simd, V, kIsTall> fetch(tile, 1);
  for (int64_t unit = 0; unit < tile.units; ++unit) {
    fetch.next(slice.vectors, 0);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      typename Simd::Ints weights[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        weights[v] = Simd::template load_part<kFormat>(slice.vectors[v], part);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename Simd::Ints input = Simd::broadcast_unit(rows.unit(r) + 4 * part);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          sums[r][v] = Simd::template multiply_add<kFormat>(sums[r][v], weights[v], input);
        }
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      slice.vectors[v] += kRowBytes;
    }
    rows.advance(4 * kParts);
  }
  if (tile.ends) {
    write<Simd, R, V>(tile, sums);
  } else {
    store_sums<Simd, R, V>(tile, sums);
  }
}

// Converts the groups of a row one by one, each with a scale of its own.
template <void (*kConvertFp8)(const ActivationRow&)>
void convert_groups(const ActivationRow& row) {
  constexpr int64_t kGroup = encoding(WeightFormat::fp8_group128).group;
  for (int64_t at = 0; at < row.cols; at += kGroup) {
    const int64_t cols = row.cols - at;
    const bool last = cols <= kGroup;
    kConvertFp8({row.in + at, last ? cols : kGroup, row.out + at * 2,
                 last ? row.out_bytes - at * 2 : kGroup * 2, row.scale + at / kGroup});
  }
}

// Codes become bf16 exactly, and are multiplied as bf16.
template <class Simd, int R, int V, bool kIsTall>
void multiply_fp8(const LinearTile& tile) {
  typename Simd::Floats sums[R][V];
  start<Simd, R, V>(tile, sums);
  Slice<Simd, V> slice(tile, kBytesPerScales + tile.first_unit / 2 * kBytesPerUnitRow);
  Rows<R> rows(tile, 4 * tile.first_unit);
  fetch_outputs<Simd, R, V>(tile);
  Fetch<Simd, V, kIsTall> fetch(tile, 2);
  const typename Simd::E4m3 expand{};
  for (int64_t unit = 0; unit < tile.units; unit += 2) {
    fetch.next(slice.vectors, 0);
    typename Simd::Ints even[V];
    typename Simd::Ints odd[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      expand.to_pairs(Simd::load_units(slice.vectors[v]), even[v], odd[v]);
      slice.vectors[v] += kBytesPerUnitRow;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename Simd::Ints first = Simd::broadcast_unit(rows.unit(r));
      const typename Simd::Ints second = Simd::broadcast_unit(rows.unit(r) + 4);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        sums[r][v] = expand.multiply_add(sums[r][v], even[v], first);
        sums[r][v] = expand.multiply_add(sums[r][v], odd[v], second);
      }
    }
    rows.advance(8);
  }
  if (!tile.ends) {
    store_sums<Simd, R, V>(tile, sums);
    return;
  }
  const Slice<Simd, V> scales(tile, 0);
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const typename Simd::Floats scale = Simd::to_bits(Simd::load_units(scales.vectors[v]));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sums[r][v] =
          Simd::multiply(Simd::multiply(sums[r][v], scale), Simd::broadcast(tile.scales[r]));
    }
  }
  write<Simd, R, V>(tile, sums);
}

// The same with a scale for each 128 inputs of weights and activations. Groups are added in
// ascending order.
template <class Simd, int R, int V, bool kIsTall>
void multiply_fp8_groups(const LinearTile& tile) {
  using Floats = typename Simd::Floats;
  constexpr int64_t kUnits = encoding(WeightFormat::fp8_group128).group / 2;
  Floats totals[R][V];
  start<Simd, R, V>(tile, totals);
  Slice<Simd, V> slice(tile, tile.first_byte);
  Rows<R> rows(tile, 4 * tile.first_unit);
  fetch_outputs<Simd, R, V>(tile);
  Fetch<Simd, V, kIsTall> fetch(tile, 2);
  const typename Simd::E4m3 expand{};
  const float* in_scales = tile.scales + tile.first_unit / kUnits;
  for (int64_t first = 0; first < tile.units; first += kUnits, ++in_scales) {
    Floats sums[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        sums[r][v] = Simd::zero();
      }
    }
    const std::byte* scales[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      scales[v] = slice.vectors[v] - kBytesPerScales;
    }
    const int64_t end = first + kUnits < tile.units ? first + kUnits : tile.units;
    for (int64_t unit = first; unit < end; unit += 2) {
      fetch.next(slice.vectors, 0);
      typename Simd::Ints even[V];
      typename Simd::Ints odd[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        expand.to_pairs(Simd::load_units(slice.vectors[v]), even[v], odd[v]);
        slice.vectors[v] += kBytesPerUnitRow;
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename Simd::Ints low = Simd::broadcast_unit(rows.unit(r));
        const typename Simd::Ints high = Simd::broadcast_unit(rows.unit(r) + 4);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          sums[r][v] = expand.multiply_add(sums[r][v], even[v], low);
          sums[r][v] = expand.multiply_add(sums[r][v], odd[v], high);
        }
      }
      rows.advance(8);
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const Floats scale = Simd::to_bits(Simd::load_units(scales[v]));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Floats in_scale = Simd::broadcast(in_scales[r * tile.scale_stride]);
        totals[r][v] =
            Simd::multiply_add(Simd::multiply(sums[r][v], scale), in_scale, totals[r][v]);
      }
      slice.vectors[v] += kBytesPerScales;
    }
  }
  if (tile.ends) {
    write<Simd, R, V>(tile, totals);
  } else {
    store_sums<Simd, R, V>(tile, totals);
  }
}

}  // namespace tessera
