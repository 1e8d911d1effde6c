#pragma once

#include "kernels/cpu/linear/tile_blocks.h"
#include "kernels/cpu/linear/tile_floats.h"

// Tables of tiles, one function for each number of rows.
namespace tessera {

// Tiles argument of TileTable: a function for each number of rows.
template <class Simd, WeightFormat kFormat, int V, bool kIsTall>
struct RegisterTiles {
  template <int R>
  static void multiply(const LinearTile& tile) {
    if constexpr (encoding(kFormat).is_coded()) {
      multiply_blocks<Simd, kFormat, R, V, kIsTall>(tile);
    } else if constexpr (kFormat == WeightFormat::fp8) {
      multiply_fp8<Simd, R, V, kIsTall>(tile);
    } else if constexpr (kFormat == WeightFormat::fp8_group128) {
      multiply_fp8_groups<Simd, R, V, kIsTall>(tile);
    } else {
      multiply_floats<Simd, kFormat, R, V, kIsTall>(tile);
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

template <class Simd, WeightFormat kFormat, int kMax, int V>
inline constexpr TileKernels kWide{
    V * Simd::kLanes, kMax, TileTable<RegisterTiles<Simd, kFormat, V, false>, kMax>::kByRows};
template <class Simd, WeightFormat kFormat, int kMax, int V>
inline constexpr TileKernels kTall{V * Simd::kLanes, kMax,
                                   TileTable<RegisterTiles<Simd, kFormat, V, true>, kMax>::kByRows};

}  // namespace tessera
