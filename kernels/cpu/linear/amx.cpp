#include "kernels/cpu/linear/amx_blocks.h"
#include "kernels/cpu/linear/amx_floats.h"

namespace tessera::amx {
namespace {

void begin_tiles() {
  _tile_loadconfig(&kTileConfig);
}

template <int V, bool kIsTall>
struct FloatTiles {
  template <int kRows>
  static void multiply(const LinearTile& tile) {
    FloatProduct<(kRows + kTileRows - 1) / kTileRows, V, kIsTall>{tile, kRows}.run();
  }
};

template <int kMax, int V, bool kIsTall>
constexpr TileKernels kFloatTiles{V * Simd512::kLanes, kMax,
                                  TileTable<FloatTiles<V, kIsTall>, kMax>::kByRows, begin_tiles,
                                  release_tiles};

// With fewer inputs, the fixed work of a tile costs more than its products save.
constexpr int64_t kLeastInputs = 1024;

template <WeightFormat kFormat>
void use_tiles_for(LinearKernels& kernels) {
  FormatKernels& own = kernels.formats[static_cast<int>(kFormat)];
  own.large = kBlockTiles<group_tile(kFormat)>;
  own.large_rows = kLeastRows;
  own.large_inputs = kLeastInputs;
}

}  // namespace

// With few rows of bf16, a line of weights is loaded once for all of them. With many, a tile is
// twice 16 rows by two vectors of outputs, so that each loaded register serves two products.
LinearKernels linear_kernels() {
  LinearKernels kernels = avx512::kLinearKernels;
  FormatKernels& bf16 = kernels.formats[static_cast<int>(WeightFormat::bf16)];
  bf16.wide = kFloatTiles<kTileRows, 4, false>;
  bf16.tall = kFloatTiles<2 * kTileRows, 2, true>;
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (use_tiles_for<kCodedFormats[kIndex]>(kernels), ...);
  }
  (std::make_index_sequence<std::size(kCodedFormats)>{});
  return kernels;
}

}  // namespace tessera::amx
