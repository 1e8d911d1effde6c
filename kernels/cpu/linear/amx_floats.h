#pragma once

#include "kernels/cpu/linear/amx_tiles.h"

// Tiles of bf16. A panel's lines are the rows of a product's second operand without repacking, and
// 16 rows of activations are those of its first. A register of sums is 16 rows by 16 outputs.
// Products of bf16 are added in another order than vectors add them, so AMX handles all numbers of
// rows: a row's sum must not depend on the number of rows.
namespace tessera::amx {
namespace {

inline constexpr int kUnits = kTileRowBytes / 4;  // in a step

// kHigh x V registers of sums: up to 16 kHigh rows by 16 V outputs.
template <int kHigh, int V, bool kIsTall>
struct FloatProduct {
  static_assert(kIsTall || kHigh == 1);

  const LinearTile& tile;
  int rows;

  static constexpr int64_t kLanes = Simd512::kLanes;
  static constexpr int64_t kRowFloats = V * kLanes;  // row length of `partial`

  // Sums are passed from stretch to stretch in memory of the caller.
  template <int kHighIndex, int kVector>
  TESSERA_INLINE float* partial() const {
    return tile.partial + kHighIndex * kTileRows * kRowFloats + kVector * kLanes;
  }
  TESSERA_INLINE void begin() const {
    for_each<kHigh>([&]<int kHighIndex>() {
      for_each<V>([&]<int kVector>() {
        constexpr int kSums = kHighIndex * V + kVector;
        if (tile.begins) {
          clear<kSums>();
        } else {
          load<kSums>(reinterpret_cast<const std::byte*>(partial<kHighIndex, kVector>()),
                      kRowFloats * 4);
        }
      });
    });
  }
  TESSERA_INLINE void store_sums() const {
    for_each<kHigh>([&]<int kHighIndex>() {
      for_each<V>([&]<int kVector>() {
        store<kHighIndex * V + kVector>(partial<kHighIndex, kVector>(), kRowFloats * 4);
      });
    });
  }

  // One step. `activations` points to the first row, `weights` to the first unit of each vector.
  // `fetch(i)` prefetches a part of later weights after product i of kProducts. Prefetching all at
  // once would delay the loads, and memory would then idle during the products.
  static constexpr int kProducts = kHigh * V;
  template <class F>
  TESSERA_INLINE static void step(const std::byte* activations, int64_t activation_stride,
                                  const std::byte* const (&weights)[V], int64_t weight_stride,
                                  F fetch) {
    for_each<kHigh>([&]<int kHighIndex>() {
      load<kActivations + kHighIndex>(activations + kHighIndex * kTileRows * activation_stride,
                                      activation_stride);
    });
    for_each<V>([&]<int kVector>() {
      constexpr int kOutputs = kWeights + kVector % 2;
      load<kOutputs>(weights[kVector], weight_stride);
      for_each<kHigh>([&]<int kHighIndex>() {
        multiply_add<kHighIndex * V + kVector, kActivations + kHighIndex, kOutputs>();
        fetch(kVector * kHigh + kHighIndex);
      });
    });
  }

  // Multiplies the last units if they do not fill a register, padded with zeros. Bytes beyond them
  // in the panel and in the scratch are undefined.
  void last_step(const std::byte* activations, const std::byte* const (&weights)[V],
                 int64_t units) const {
    alignas(64) std::byte inputs[kHigh * kTileRows][kTileRowBytes] = {};
    alignas(64) std::byte lines[V][kUnits][kTileRowBytes] = {};
    for (int row = 0; row < rows; ++row) {
      __builtin_memcpy(inputs[row], activations + row * tile.activation_stride,
                       static_cast<size_t>(units) * 4);
    }
    const std::byte* padded[V];
    for (int v = 0; v < V; ++v) {
      for (int64_t unit = 0; unit < units; ++unit) {
        __builtin_memcpy(lines[v][unit], weights[v] + unit * kBytesPerUnitRow, kTileRowBytes);
      }
      padded[v] = lines[v][0];
    }
    step(inputs[0], kTileRowBytes, padded, kTileRowBytes, [](int) {});
  }

  TESSERA_INLINE void add_up() const {
    Slice<Simd512, V> slice(tile, tile.first_unit * kBytesPerUnitRow);
    const std::byte* activations = tile.activations + 4 * tile.first_unit;
    const std::byte* ahead = tile.ahead;
    int64_t unit = 0;
    for (; unit + kUnits <= tile.units; unit += kUnits) {
      const std::byte* const first_ahead = ahead;
      step(activations, tile.activation_stride, slice.vectors, kBytesPerUnitRow, [&](int product) {
        if constexpr (kIsTall) {
          const std::byte* end = first_ahead + (product + 1) * kUnits / kProducts * tile.ahead_step;
          for (; ahead < end; ahead += kBytesPerLine) {
            Simd512::prefetch(ahead);
          }
        } else {
          const std::byte* later = slice.vectors[product] + Simd512::kPrefetchBytes;
          for (int64_t i = 0; i < kUnits; ++i) {
            Simd512::prefetch(later + i * kBytesPerUnitRow);
          }
        }
      });
      activations += kTileRowBytes;
      for (int v = 0; v < V; ++v) {
        slice.vectors[v] += kUnits * kBytesPerUnitRow;
      }
    }
    if (unit < tile.units) {
      last_step(activations, slice.vectors, tile.units - unit);
    }
  }

  TESSERA_INLINE void write_row(const float* sums, int row) const {
    LinearTile own = tile;
    own.out += row * tile.out_stride;
    __m512 values[1][V];
    for (int v = 0; v < V; ++v) {
      values[0][v] = _mm512_load_ps(sums + v * kLanes);
    }
    write<Simd512, 1, V>(own, values);
  }
  TESSERA_INLINE void write_rows() const {
    alignas(64) float sums[kHigh * kTileRows][kRowFloats];
    for_each<kHigh>([&]<int kHighIndex>() {
      for_each<V>([&]<int kVector>() {
        store<kHighIndex * V + kVector>(&sums[kHighIndex * kTileRows][kVector * kLanes],
                                        kRowFloats * 4);
      });
    });
    for (int row = 0; row < rows; ++row) {
      write_row(sums[row], row);
    }
  }

  // As in tile.h, for the rows that exist.
  TESSERA_INLINE void fetch_outputs() const {
    for (int row = 0; row < rows; ++row) {
      LinearTile own = tile;
      own.out += row * tile.out_stride;
      tessera::fetch_outputs<Simd512, 1, V>(own);
    }
  }

  [[gnu::noinline]] void run() const {
    if (tile.ends) {
      fetch_outputs();
    }
    begin();
    add_up();
    if (tile.ends) {
      write_rows();
    } else {
      store_sums();
    }
  }
};

}  // namespace
}  // namespace tessera::amx
