#include "kernels/cpu/simd/tile_registers.h"
#include "kernels/cpu/tiles/code_tiles.h"
#include "kernels/cpu/tiles/pair_block.h"

namespace tessera::amx {
namespace {

bool serves(const PairBlock& block) {
  return block.pairs >= CodeTiles::kFewestPairs;
}

void begin_tiles(const PairBlock& block) {
  if (serves(block)) {
    _tile_loadconfig(&kTileConfig);
  }
}
void end_tiles(const PairBlock& block) {
  if (serves(block)) {
    _tile_release();
  }
}

void add_tile(PairBlock& block, const TileStep& step) {
  if (serves(block) && step.tile.shape->layout.format.is_codes()) {
    CodeTiles::add_tile(block, step);
  } else {
    avx512::kFp16AttentionKernels.add_tile(block, step);
  }
}

}  // namespace

AttentionKernels attention_kernels() {
  AttentionKernels kernels = avx512::kFp16AttentionKernels;
  kernels.add_tile = add_tile;
  kernels.begin_tiles = begin_tiles;
  kernels.end_tiles = end_tiles;
  return kernels;
}

}  // namespace tessera::amx
