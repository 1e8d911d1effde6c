#pragma once

#include "kernels/cpu/linear/kernels.h"

// Register tile, written once over a `Simd` type: R rows by V vectors of outputs. Their sums stay
// in registers from the first input to the last. Each sum runs over the inputs in ascending order
// for all R and V; this is the batch invariance of LinearArgs.
//
// Include this from files of one instruction set only. Everything is instantiated with a Simd type
// of an anonymous namespace, and so stays inside its file.
namespace tessera {

#define TESSERA_INLINE [[gnu::always_inline]] inline

enum class Element { f32, bf16, f16, int8, int4, fp8 };

inline constexpr int kUnitsPerGroup = 4;      // weight units in an int4 group
inline constexpr int kBytesPerUnitRow = 128;  // 32 outputs
inline constexpr int kBytesPerLine = 64;      // cache line
inline constexpr int kBytesPerScales = 128;   // scales of an int8 or fp8 panel
inline constexpr int kBytesPerGroupScales = 64;
inline constexpr int kBytesPerGroup = kBytesPerGroupScales + kUnitsPerGroup * kBytesPerUnitRow;

// Address of each vector of a slice: its panel, and its byte in a row of units.
template <class Simd, int V, int kUnitBytes = 4>
struct Slice {
  const std::byte* vectors[V];
  int64_t lane[V];  // index of its first output in the panel

  TESSERA_INLINE Slice(const LinearTile& tile, int64_t offset) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const int64_t output = tile.first_output + v * Simd::kLanes;
      lane[v] = output % 32;
      vectors[v] = tile.panel + output / 32 * tile.panel_bytes + lane[v] * kUnitBytes + offset;
    }
  }
};

// With few rows, weights stream from memory, and each vector prefetches its own next weights. With
// many rows, the driver spreads the prefetches of the next stretch over the tiles of the current
// one.
template <class Simd, int V, bool kIsTall>
struct Fetch {
  const std::byte* ahead;
  int64_t step;

  TESSERA_INLINE Fetch(const LinearTile& tile, int64_t units)
      : ahead(tile.ahead), step(tile.ahead_step * units) {}
  TESSERA_INLINE void next(const std::byte* const (&vectors)[V], int64_t offset) {
    if constexpr (kIsTall) {
      Simd::prefetch(ahead);
      Simd::prefetch(ahead + kBytesPerLine);
      ahead += step;
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        Simd::prefetch(vectors[v] + offset + Simd::kPrefetchBytes);
      }
    }
  }
};

// Pointers to the rows' next units. Rows are addressed from every fourth row, so that few pointers
// stay live.
template <int R>
struct Rows {
  const std::byte* fourth[(R + 3) / 4];
  int64_t stride;

  TESSERA_INLINE explicit Rows(const LinearTile& tile) : stride(tile.activation_stride) {
#pragma GCC unroll 4
    for (int i = 0; i < (R + 3) / 4; ++i) {
      fourth[i] = tile.activations + 4 * i * stride + 4 * tile.first_unit;
    }
  }
  TESSERA_INLINE const std::byte* unit(int row) const {
    return fourth[row / 4] + (row % 4) * stride;
  }
  TESSERA_INLINE void advance(int64_t bytes) {
#pragma GCC unroll 4
    for (int i = 0; i < (R + 3) / 4; ++i) {
      fourth[i] += bytes;
    }
  }
};

template <class Simd, int V>
TESSERA_INLINE std::byte* partial_at(const LinearTile& tile, int row, int v) {
  return reinterpret_cast<std::byte*>(tile.partial + (row * V + v) * Simd::kLanes);
}

template <class Simd, int R, int V>
TESSERA_INLINE void start(const LinearTile& tile, typename Simd::Floats (&sums)[R][V]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      sums[r][v] = tile.begins ? Simd::zero()
                               : Simd::to_bits(Simd::load_units(partial_at<Simd, V>(tile, r, v)));
    }
  }
}

template <class Simd, int R, int V, class Sum>
TESSERA_INLINE void store_sums(const LinearTile& tile, Sum (&sums)[R][V]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      __builtin_memcpy(partial_at<Simd, V>(tile, r, v), &sums[r][v], sizeof(Sum));
    }
  }
}

// Outputs are on as many pages as there are rows. Their lines are prefetched before the sums are
// ready, so that stores do not wait.
template <class Simd, int R, int V>
TESSERA_INLINE void fetch_outputs(const LinearTile& tile) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const auto* out = reinterpret_cast<const std::byte*>(tile.out + r * tile.out_stride);
#pragma GCC unroll 8
    for (int at = 0; at < V * Simd::kLanes * 4; at += kBytesPerLine) {
      Simd::prefetch(out + at);
    }
  }
}

template <class Simd, int R, int V>
TESSERA_INLINE void write(const LinearTile& tile, typename Simd::Floats (&sums)[R][V]) {
  if (tile.bias == nullptr && !tile.accumulate && tile.outputs >= V * Simd::kLanes) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        Simd::store(tile.out + r * tile.out_stride + v * Simd::kLanes, sums[r][v]);
      }
    }
    return;
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const int64_t first = v * Simd::kLanes;
    if (first >= tile.outputs) {
      return;
    }
    const auto mask = Simd::mask(tile.outputs - first);
    // A missing bias is -0: added to any value, -0 included, it changes no bit.
    const typename Simd::Floats bias =
        tile.bias != nullptr ? Simd::load(tile.bias + first, mask) : Simd::broadcast(-0.0f);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float* out = tile.out + r * tile.out_stride + first;
      const typename Simd::Floats value = Simd::add(sums[r][v], bias);
      Simd::store(out, mask, tile.accumulate ? Simd::add(Simd::load(out, mask), value) : value);
    }
  }
}

template <class Simd, Element E, int R, int V, bool kIsTall>
void multiply_floats(const LinearTile& tile) {
  typename Simd::Floats sums[R][V];
  constexpr int kUnitBytes = E == Element::f16 ? 2 : 4;
  constexpr int64_t kRowBytes = kBytesPerUnitRow / 4 * kUnitBytes;
  start<Simd, R, V>(tile, sums);
  Slice<Simd, V, kUnitBytes> slice(tile, tile.first_unit * kRowBytes);
  Rows<R> rows(tile);
  fetch_outputs<Simd, R, V>(tile);
  Fetch<Simd, V, kIsTall> fetch(tile, 1);
  for (int64_t unit = 0; unit < tile.units; ++unit) {
    fetch.next(slice.vectors, 0);
    typename Simd::Ints weights[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      weights[v] = E == Element::f16 ? Simd::load_f16_units(slice.vectors[v])
                                     : Simd::load_units(slice.vectors[v]);
      slice.vectors[v] += kRowBytes;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename Simd::Ints input = Simd::broadcast_unit(rows.unit(r));
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        sums[r][v] = Simd::template multiply_add<E>(sums[r][v], weights[v], input);
      }
    }
    rows.advance(4);
  }
  if (tile.ends) {
    write<Simd, R, V>(tile, sums);
  } else {
    store_sums<Simd, R, V>(tile, sums);
  }
}

template <class Simd, int R, int V, bool kIsTall>
void multiply_int8(const LinearTile& tile) {
  typename Simd::Ints sums[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      sums[r][v] = tile.begins ? Simd::broadcast(tile.corrections[r * tile.correction_stride])
                               : Simd::load_units(partial_at<Simd, V>(tile, r, v));
    }
  }
  Slice<Simd, V> slice(tile, kBytesPerScales + tile.first_unit * kBytesPerUnitRow);
  Rows<R> rows(tile);
  fetch_outputs<Simd, R, V>(tile);
  Fetch<Simd, V, kIsTall> fetch(tile, 1);
  for (int64_t unit = 0; unit < tile.units; ++unit) {
    fetch.next(slice.vectors, 0);
    typename Simd::Ints weights[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      weights[v] = Simd::load_units(slice.vectors[v]);
      slice.vectors[v] += kBytesPerUnitRow;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename Simd::Ints input = Simd::broadcast_unit(rows.unit(r));
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        sums[r][v] = Simd::dot(sums[r][v], weights[v], input);
      }
    }
    rows.advance(4);
  }
  if (!tile.ends) {
    store_sums<Simd, R, V>(tile, sums);
    return;
  }
  typename Simd::Floats values[R][V];
  const Slice<Simd, V> scales(tile, 0);
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const typename Simd::Floats scale = Simd::to_bits(Simd::load_units(scales.vectors[v]));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      values[r][v] = Simd::multiply(Simd::multiply(Simd::to_floats(sums[r][v]), scale),
                                    Simd::broadcast(tile.scales[r]));
    }
  }
  write<Simd, R, V>(tile, values);
}

template <class Simd, int R, int V, bool kIsTall>
void multiply_int4(const LinearTile& tile) {
  typename Simd::Floats sums[R][V];
  start<Simd, R, V>(tile, sums);
  const int64_t first_group = tile.first_unit / (2 * kUnitsPerGroup);
  const int64_t end_group = first_group + tile.units / (2 * kUnitsPerGroup);
  Slice<Simd, V> slice(tile, first_group * kBytesPerGroup);
  Rows<R> rows(tile);
  fetch_outputs<Simd, R, V>(tile);
  Fetch<Simd, V, kIsTall> fetch(tile, 2);
  for (int64_t group = first_group; group < end_group; ++group) {
    typename Simd::Ints group_sums[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        group_sums[r][v] = Simd::start_group(tile.corrections[r * tile.correction_stride + group]);
      }
    }
#pragma GCC unroll 4
    for (int unit = 0; unit < kUnitsPerGroup; ++unit) {
      fetch.next(slice.vectors, kBytesPerGroupScales + unit * kBytesPerUnitRow);
      typename Simd::Ints low[V];
      typename Simd::Ints high[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const std::byte* units = slice.vectors[v] + kBytesPerGroupScales + unit * kBytesPerUnitRow;
        const typename Simd::Ints nibbles = Simd::load_units(units);
        low[v] = Simd::low_nibbles(nibbles);
        high[v] = Simd::high_nibbles(nibbles);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename Simd::Ints first = Simd::broadcast_unit(rows.unit(r) + 8 * unit);
        const typename Simd::Ints second = Simd::broadcast_unit(rows.unit(r) + 8 * unit + 4);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          group_sums[r][v] = Simd::dot_nibbles(group_sums[r][v], low[v], first);
          group_sums[r][v] = Simd::dot_nibbles(group_sums[r][v], high[v], second);
        }
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const typename Simd::Floats scale =
          Simd::group_scale(slice.vectors[v] - slice.lane[v] * 4, slice.lane[v]);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename Simd::Ints sum = Simd::finish_group(
            group_sums[r][v], tile.corrections[r * tile.correction_stride + group]);
        sums[r][v] = Simd::multiply_add(Simd::to_floats(sum), scale, sums[r][v]);
      }
      slice.vectors[v] += kBytesPerGroup;
    }
    rows.advance(8 * kUnitsPerGroup);
  }
  if (!tile.ends) {
    store_sums<Simd, R, V>(tile, sums);
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      sums[r][v] = Simd::multiply(sums[r][v], Simd::broadcast(tile.scales[r]));
    }
  }
  write<Simd, R, V>(tile, sums);
}

// Codes become bf16 exactly, and are multiplied as bf16.
template <class Simd, int R, int V, bool kIsTall>
void multiply_fp8(const LinearTile& tile) {
  typename Simd::Floats sums[R][V];
  start<Simd, R, V>(tile, sums);
  Slice<Simd, V> slice(tile, kBytesPerScales + tile.first_unit / 2 * kBytesPerUnitRow);
  Rows<R> rows(tile);
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

// Tiles argument of TileTable: a function for each number of rows.
template <class Simd, Element E, int V, bool kIsTall>
struct RegisterTiles {
  template <int R>
  static void multiply(const LinearTile& tile) {
    if constexpr (E == Element::int8) {
      multiply_int8<Simd, R, V, kIsTall>(tile);
    } else if constexpr (E == Element::int4) {
      multiply_int4<Simd, R, V, kIsTall>(tile);
    } else if constexpr (E == Element::fp8) {
      multiply_fp8<Simd, R, V, kIsTall>(tile);
    } else {
      multiply_floats<Simd, E, R, V, kIsTall>(tile);
    }
  }
};

template <int... kRows>
struct RowCounts {};

template <int kMax, int... kRows>
struct CountTo : CountTo<kMax - 1, kMax, kRows...> {};
template <int... kRows>
struct CountTo<0, kRows...> {
  using Counts = RowCounts<kRows...>;
};

// The functions for 1 to kMax rows.
template <class Tiles, int kMax, class Counts = typename CountTo<kMax>::Counts>
struct TileTable;
template <class Tiles, int kMax, int... kRows>
struct TileTable<Tiles, kMax, RowCounts<kRows...>> {
  static constexpr MultiplyTile kByRows[] = {Tiles::template multiply<kRows>...};
};

template <class Simd, Element E, int kMax, int V>
inline constexpr TileKernels kWide{V * Simd::kLanes, kMax,
                                   TileTable<RegisterTiles<Simd, E, V, false>, kMax>::kByRows};
template <class Simd, Element E, int kMax, int V>
inline constexpr TileKernels kTall{V * Simd::kLanes, kMax,
                                   TileTable<RegisterTiles<Simd, E, V, true>, kMax>::kByRows};

}  // namespace tessera
