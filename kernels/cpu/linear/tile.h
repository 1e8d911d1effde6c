#pragma once

#include "kernels/cpu/linear/kernels.h"
#include "kernels/matrix/weight.h"

// Parts of the register tile, which is written once over a `Simd` type: R rows by V vectors of
// outputs. Each sum runs over the inputs in ascending order for all R and V; this is the batch
// invariance of LinearArgs.
//
// Include this from files of one instruction set only. Everything is instantiated with a Simd type
// of an anonymous namespace, and so stays inside its file.
namespace tessera {

#define TESSERA_INLINE [[gnu::always_inline]] inline

inline constexpr int kBytesPerUnitRow = 128;  // 32 outputs
inline constexpr int kBytesPerLine = 64;      // cache line
inline constexpr int kBytesPerScales = 128;   // scales of an fp8 panel

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

  // offset: bytes of a row before the stretch
  TESSERA_INLINE Rows(const LinearTile& tile, int64_t offset) : stride(tile.activation_stride) {
#pragma GCC unroll 4
    for (int i = 0; i < (R + 3) / 4; ++i) {
      fourth[i] = tile.activations + 4 * i * stride + offset;
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

}  // namespace tessera
