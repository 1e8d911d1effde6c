#pragma once

#include <type_traits>

#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/attention/work.h"
#include "kernels/cuda/simt/block.h"
#include "kernels/kv/code_step.h"

namespace tessera::cuda {

// The tensor cores take the pairs of a warp's block four at a time. A product has 8 columns; pair i
// of four has column 2 i for its high part and column 2 i + 1 for its low part. A query therefore
// has about 15 bits against codes and 22 against f16, at no extra cost for a gqa_ratio of up to 4.
inline constexpr int32_t kPairsOfProduct = 4;
inline constexpr int32_t kMaxProducts = 2;
inline constexpr int32_t kMaxTaskPairs = kPairsOfProduct * kMaxProducts;

// Factor by which the low part of a split f16 number is scaled up.
inline constexpr float kHalfSplit = 2048;

struct SplitHalf {
  float high;
  float low;  // times kHalfSplit
};
TESSERA_DEVICE SplitHalf split_half(float x) {
  const float high = simt::as_f32(simt::as_f16(x));
  return {high, (x - high) * kHalfSplit};
}
// Returns: a sum of products with both parts. columns: the sums with the high and the low parts.
TESSERA_DEVICE float sum_of_parts(const float* columns) {
  return simt::fma(columns[1], 1 / kHalfSplit, columns[0]);
}

// Split an integer in [-32512, 32512] into 256 * high + low, both signed bytes.
TESSERA_DEVICE int32_t low_byte(int32_t code) {
  return ((code + 128) & 255) - 128;
}
TESSERA_DEVICE int32_t high_byte(int32_t code) {
  return (code + 128) >> 8;
}

// A pair of a warp's task.
struct TaskPair {
  int32_t partial;  // index of its partial softmax in Work::partials
  int32_t row;      // of the batch
  int32_t head;
  int32_t position;
};

// Work of one attention warp. It is in shared memory, because it is the same for all lanes and
// registers are scarce.
struct WarpTask {
  int32_t index;  // in the list of splits; not set for a task outside of it
  // `span` and `row` are those of the first pair. Other query tokens of an item see its tiles as
  // the first does.
  SequenceSpan span;
  RowTokens row;
  TaskPair of[kMaxTaskPairs];
  int32_t pairs;
  int32_t group;       // of the pairs' positions
  int32_t first_head;  // first query head of the KV head
  int32_t heads;       // gqa_ratio
  int32_t all_first;   // tiles [all_first, all_end) of the task, which begin() sets
  int32_t all_end;
  int32_t first;  // tiles [first, end) of its slice, which begin_slice() sets
  int32_t end;
  // Tiles before these ends are in pages; the one at it, if any, is dense.
  int32_t all_pages_end;
  int32_t pages_end;
  float* scores_left;  // row of AttentionArgs::weights to write scores to (decode only), or null

  // Sets the tiles of the task: `count` of them, if the row has as many.
  TESSERA_DEVICE void begin(int32_t first_tile, int32_t count) {
    all_first = first_tile;
    all_end = first_tile + count < row.tiles() ? first_tile + count : row.tiles();
    all_pages_end = end_in_pages(all_end);
    begin_slice(first_tile);
  }
  // Sets the tiles of the slice that begins at tile `first_tile`.
  TESSERA_DEVICE void begin_slice(int32_t first_tile) {
    const int32_t next = first_tile + slice_tiles(row.tiles());
    first = first_tile;
    end = next < all_end ? next : all_end;
    pages_end = end_in_pages(end);
  }
  // Returns: true if the slice is the last of its split.
  TESSERA_DEVICE bool ends_split() const {
    return end == all_end || end % split_tiles(row.tiles()) == 0;
  }

 private:
  TESSERA_DEVICE int32_t end_in_pages(int32_t tile) const {
    return tile < row.tiles() ? tile : row.tiles() - 1;
  }
};

// Channels of `out` that a lane has: four in each block, kStep apart.
struct BlockedChannels {  // neighbouring lanes have neighbouring fours
  static constexpr bool kNeighbours = false;
  static constexpr int32_t kStep = 1;
  template <int kDim>
  TESSERA_DEVICE static int32_t first(int32_t block) {
    return 32 * block + 4 * (simt::lane() / 4);
  }
};
struct NeighbourChannels {  // all of a lane's channels are neighbours
  static constexpr bool kNeighbours = true;
  static constexpr int32_t kStep = 1;
  template <int kDim>
  TESSERA_DEVICE static int32_t first(int32_t block) {
    return kDim / 8 * (simt::lane() / 4) + 4 * block;
  }
};
struct SteppedChannels {  // neighbouring lanes have neighbouring channels
  static constexpr bool kNeighbours = false;
  static constexpr int32_t kStep = 8;
  template <int kDim>
  TESSERA_DEVICE static int32_t first(int32_t block) {
    return 32 * block + simt::lane() / 4;
  }
};

// Tiles whose places a warp resolves at once: a place for each lane.
inline constexpr int32_t kPlacedTiles = simt::kWarp / Tile::kPlaces;

// Shared memory of one warp. Each column is padded by 16 bytes, so that lanes which read the same
// offset of neighbouring columns use different banks.
template <int kDim, int kProducts>
struct WarpMemory {
  static constexpr int kWeightWords = kKvGroup / 2 + 4;

  alignas(16) TilePlace places[kPlacedTiles * Tile::kPlaces];
  WarpTask task;
  // Weights of a tile, column by column: bytes, f16, or floats (then one column for each pair).
  alignas(16) uint32_t weights[kProducts][8][kWeightWords];
  // Partial softmax of each pair over the slices of a split so far, and over the splits so far,
  // where one warp takes several. Registers for them would be taken during every tile.
  PartialSums of_split[kPairsOfProduct * kProducts];
  PartialSums of_row[kPairsOfProduct * kProducts];
};

// Returns: place in the warp's memory of a tile's scores for the lane's pair, [64]. Lanes exchange
// them there. Weights take the same place later.
template <int kDim, int kProducts>
TESSERA_DEVICE float* scores_in(WarpMemory<kDim, kProducts>& memory, int32_t product) {
  return reinterpret_cast<float*>(memory.weights[product][2 * (simt::lane() % 4)]);
}
// Computes scores[product][i] for token 8 (lane / 4) + i. Requires: all lanes call it.
template <int kDim, int kProducts>
TESSERA_DEVICE void take_scores(WarpMemory<kDim, kProducts>& memory,
                                float (&scores)[kProducts][8]) {
  simt::sync_warp();
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      scores[product][i] = scores_in(memory, product)[8 * (simt::lane() / 4) + i];
    }
  }
}

// Queries as f16, column by column.
template <int kDim, int kProducts>
struct HalfQueries {
  alignas(16) f16 columns[8 * kProducts][kDim + 8];

  // Returns: the lane's part of a product with channels [16 chunk, 16 chunk + 16).
  TESSERA_DEVICE simt::WordPair fragment(int32_t product, int32_t chunk) const {
    const int32_t lane = simt::lane();
    return simt::load_pair(&columns[8 * product + lane / 4][16 * chunk + 4 * (lane % 4)]);
  }
};

// Queries as bytes, for rows that may have codes.
template <int kDim, int kProducts>
struct CodeQueries {
  struct Query {
    float step;  // scale of the query's codes
    float sum;   // sum of its channels
  };
  alignas(16) uint8_t columns[8 * kProducts][kDim + 16];
  Query of[kPairsOfProduct * kProducts];
  // Sums over the values' zeros of a lane's tokens so far. Like `of_split`, not in registers.
  float zeros[kProducts][simt::kWarp];
};

// Memory for tiles of floats and sparse formats, and for tiles of any format.
template <int kDim, int kProducts>
struct HalfWarpMemory : WarpMemory<kDim, kProducts> {
  HalfQueries<kDim, kProducts> halves;
};
template <int kDim, int kProducts>
struct AnyWarpMemory : HalfWarpMemory<kDim, kProducts> {
  CodeQueries<kDim, kProducts> codes;
};

// Returns: bytes of a block's shared memory: the Memory of its warps, then a Parts for each warp if
// a row has sparse tiles.
template <class Memory, class Parts>
constexpr int32_t block_memory_bytes(int32_t warps, bool sparse) {
  const bool parts = sparse && !std::is_empty_v<Parts>;
  return warps * static_cast<int32_t>(sizeof(Memory) + (parts ? sizeof(Parts) : 0));
}
template <class Memory>
TESSERA_DEVICE Memory& warp_memory() {
  return reinterpret_cast<Memory*>(&simt::shared<std::byte>())[simt::warp()];
}
template <class Memory, class Parts>
TESSERA_DEVICE Parts& warp_parts() {
  const int32_t memories = block_memory_bytes<Memory, Parts>(simt::threads() / simt::kWarp, false);
  std::byte* behind = &simt::shared<std::byte>() + memories;
  return reinterpret_cast<Parts*>(behind)[simt::warp()];
}

// Fills the HalfQueries and the CodeQueries of the warp's memory, if it has them, with `pairs`
// queries, multiplied by `scale`. `scale` includes log2(e), so that the softmax uses powers of 2.
// Queries beyond `pairs` and channels beyond head_dim are 0. query(pair): pointer to its first
// channel, [head_dim].
// Requires: all lanes call it.
template <int kDim, int kProducts, class Memory, class QueryAt>
TESSERA_DEVICE void load_queries(Memory& memory, int32_t pairs, int32_t head_dim, float scale,
                                 QueryAt&& query) {
  for (int32_t pair = 0; pair < kPairsOfProduct * kProducts; ++pair) {
    float channels[kDim / simt::kWarp];
    float largest = kMinLargest;
    float sum = 0;
    TESSERA_UNROLL
    for (int32_t i = 0; i < kDim / simt::kWarp; ++i) {
      const int32_t channel = i * simt::kWarp + simt::lane();
      channels[i] = pair < pairs && channel < head_dim ? query(pair)[channel] * scale : 0.0f;
      largest = simt::max(largest, simt::abs(channels[i]));
      sum += channels[i];
      if constexpr (requires { memory.halves; }) {
        const SplitHalf half = split_half(channels[i]);
        memory.halves.columns[2 * pair][channel] = simt::as_f16(half.high);
        memory.halves.columns[2 * pair + 1][channel] = simt::as_f16(half.low);
      }
    }
    if constexpr (requires { memory.codes; }) {
      largest = simt::warp_max(largest);
      sum = simt::warp_sum(sum);
      const float inverse = kCodeRange / largest;
      TESSERA_UNROLL
      for (int32_t i = 0; i < kDim / simt::kWarp; ++i) {
        const int32_t channel = i * simt::kWarp + simt::lane();
        const int32_t code = simt::round(channels[i] * inverse);
        memory.codes.columns[2 * pair][channel] = static_cast<uint8_t>(high_byte(code));
        memory.codes.columns[2 * pair + 1][channel] = static_cast<uint8_t>(low_byte(code));
      }
      if (simt::lane() == 0) {
        memory.codes.of[pair] = {largest / kCodeRange, sum};
      }
    }
  }
  simt::sync_warp();
}

// Returns: the words of HalfQueries::fragment(), computed from the query itself.
// Requires: head_dim is a multiple of 16, and queries are at multiples of 16 bytes.
template <class QueryAt>
TESSERA_DEVICE simt::WordPair query_fragment(int32_t product, int32_t chunk, int32_t pairs,
                                             float scale, QueryAt&& query) {
  const int32_t g = simt::lane() / 4;
  const int32_t pair = kPairsOfProduct * product + g / 2;
  if (pair >= pairs) {
    return {};
  }
  const simt::Words words = simt::load_words(query(pair) + 16 * chunk + 4 * (simt::lane() % 4));
  float parts[4];
  TESSERA_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    const SplitHalf half = split_half(std::bit_cast<float>(words.at[i]) * scale);
    parts[i] = g % 2 == 0 ? half.high : half.low;
  }
  return {{simt::pack_f16(parts[0], parts[1]), simt::pack_f16(parts[2], parts[3])}};
}

}  // namespace tessera::cuda
