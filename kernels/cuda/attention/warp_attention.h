#pragma once

#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/attention/row_tiles.h"
#include "kernels/cuda/attention/scores.h"
#include "kernels/cuda/attention/stages.h"
#include "kernels/cuda/attention/work.h"

namespace tessera::cuda {

// Attention of one warp's block of pairs over one row. A lane's registers hold data of its pair in
// each product (pair 4 product + lane % 4), of its tokens, and of its Channels. kDim: head_dim, or
// the next larger compiled size. Rows: of row_formats.h.
template <int kDim, int kProducts, class Rows>
class WarpAttention {
 public:
  using Memory = MemoryOfRows<kDim, kProducts, Rows>;
  // Sparse rows of one format are copied by whole tiles, others of one format go through stages.
  static constexpr bool kCopied = copies_parts<Rows>();
  static constexpr bool kStaged = Rows::kOneFormat && !kCopied;
  using Parts = typename SparseMemory<kDim, Rows, kCopied>::Type;
  using Channels =
      std::conditional_t<kCopied, NeighbourChannels,
                         std::conditional_t<has_halves<Rows>(), SteppedChannels, BlockedChannels>>;
  static constexpr int32_t kPairs = kPairsOfProduct * kProducts;
  static constexpr int32_t kBlocks = kDim / 32;

  // Loads the queries, and begins to copy the first tile of a kernel with stages.
  // Requires: memory.task is set; `args` and `memory` outlive this. If task.scores_left is not
  // null, run() writes the scores of its tiles there.
  TESSERA_DEVICE WarpAttention(const AttentionArgs& args, Memory& memory)
      : args_(args), task_(memory.task), memory_(memory), tiles_(args, memory.task) {
    if constexpr (kStaged) {
      select_tile(task_.all_first);
      TESSERA_UNROLL
      for (int32_t piece = 0; piece < decltype(memory.stages)::kStages - 1; ++piece) {
        if (copying_ >= 0) {
          copy_piece(piece);
        }
        simt::end_copy_group();
      }
    }
    if constexpr (has_halves<Rows>()) {
      TESSERA_UNROLL
      for (int32_t i = 0; i < kProducts * (kDim / 16); ++i) {
        half_queries_[i / (kDim / 16)][i % (kDim / 16)] =
            fragment(i / (kDim / 16), i % (kDim / 16));
      }
    } else {
      load_queries<kDim, kProducts>(memory, task_.pairs, head_dim(), args.scale * kLog2E,
                                    [this](int32_t pair) { return query(pair); });
    }
  }

  // Computes attention over the tiles of the task's next slice, from an empty softmax state.
  // Requires: it has run for the task's earlier slices, in order.
  TESSERA_DEVICE void run() {
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      maximum_[product] = -FLT_MAX;
      sum_[product] = 0;
      if constexpr (has_codes<Rows>()) {
        memory_.codes.zeros[product][simt::lane()] = 0;
      }
      TESSERA_UNROLL
      for (int32_t i = 0; i < 4 * kBlocks; ++i) {
        out_[product][i / 4][i % 4] = 0;
      }
    }
    attend_tiles();
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      zeros_[product] = 0;
      if constexpr (has_codes<Rows>()) {
        zeros_[product] = memory_.codes.zeros[product][simt::lane()];
      }
      TESSERA_UNROLL
      for (int32_t mask = 4; mask < simt::kWarp; mask *= 2) {
        sum_[product] += simt::shuffle_xor(sum_[product], mask);
        zeros_[product] += simt::shuffle_xor(zeros_[product], mask);
      }
    }
  }

  // ---- results for a lane's pair in a product; all lanes of a pair have the same sums
  TESSERA_DEVICE int32_t pair(int32_t product) const {
    return kPairsOfProduct * product + simt::lane() % 4;
  }
  TESSERA_DEVICE PartialSums sums(int32_t product) const {
    return {maximum_[product], sum_[product]};
  }
  // Calls visit(first channel, FourChannels) for all of the lane's channels, four at a time.
  template <class Visit>
  TESSERA_DEVICE void each_four(int32_t product, Visit&& visit) const {
    TESSERA_UNROLL
    for (int32_t block = 0; block < kBlocks; ++block) {
      const int32_t channel = Channels::template first<kDim>(block);
      if (channel < head_dim()) {
        FourChannels values;
        TESSERA_UNROLL
        for (int32_t i = 0; i < 4; ++i) {
          values.of[i] = out_[product][block][i] + zeros_[product];
        }
        visit(channel, values);
      }
    }
  }

 private:
  TESSERA_DEVICE int32_t head_dim() const { return tiles_.head_dim(); }
  TESSERA_DEVICE const float* query(int32_t pair) const {
    return args_.queries.data + task_.of[pair].row * args_.queries.stride +
           int64_t{task_.of[pair].head} * head_dim();
  }
  TESSERA_DEVICE simt::WordPair fragment(int32_t product, int32_t chunk) const {
    return query_fragment(product, chunk, task_.pairs, args_.scale * kLog2E,
                          [this](int32_t pair) { return query(pair); });
  }
  // Numbers of the slice are read from the task when they are needed: registers are scarce.
  TESSERA_DEVICE void attend_tiles() {
    if constexpr (has_halves<Rows>()) {
      TESSERA_UNROLL_BY(1)
      for (int32_t index = task_.first; index < task_.end; ++index) {
        attend(index, index == task_.all_pages_end);
      }
    } else if constexpr (Rows::kOneFormat) {
      // Pages in a loop of their own, without the residual buffer's format.
      TESSERA_UNROLL_BY(1)
      for (int32_t index = task_.first; index < task_.pages_end; ++index) {
        if (!kStaged && placed(index) == 0) {
          put_places(index, task_.all_pages_end, false);
        }
        attend(index, false);
      }
      if (task_.end > task_.pages_end) {
        put_places(task_.pages_end, task_.end, true);
        attend(task_.pages_end, true);
      }
    } else {
      for (int32_t index = task_.first; index < task_.end; ++index) {
        put_places(index, index + 1, index == task_.pages_end);
        attend(index, index == task_.pages_end);
      }
    }
  }

  // Returns: index of a tile's places in the warp's memory, in tiles. Kernels of one format resolve
  // those of kPlacedTiles at once, also beyond the slice.
  TESSERA_DEVICE int32_t placed(int32_t index) const {
    return Rows::kOneFormat && index < staged_end() ? (index - task_.all_first) % kPlacedTiles : 0;
  }
  // Resolves the places of tiles from `first` on: of kPlacedTiles at most, before `end`. Each lane
  // has one, so the page ids of all are loaded at once. `is_dense`: they are the last tile of the
  // row. For f16 the last of the tiles may be that one although `is_dense` is false.
  TESSERA_DEVICE void put_places(int32_t first, int32_t end, bool is_dense) {
    simt::sync_warp();  // the places before have been read
    const int32_t index = first + simt::lane() / Tile::kPlaces;
    if (index < end) {
      const auto at =
          tiles_.at(index, is_dense || (has_halves<Rows>() && index == task_.all_pages_end));
      if (at.tile.begin < at.tile.end) {
        memory_.places[simt::lane()] = at.tile.place(args_.pages, task_.row, at.is_high, at.in_tier,
                                                     simt::lane() % Tile::kPlaces);
      }
    }
    simt::sync_warp();
  }

  // End of the task's tiles that go through stages: all of f16, those in pages of codes.
  TESSERA_DEVICE int32_t staged_end() const {
    return has_halves<Rows>() ? task_.all_end : task_.all_pages_end;
  }
  // Selects tile `index` for copy_piece(), or none if the task does not have it.
  TESSERA_DEVICE void select_tile(int32_t index) {
    copying_ = -1;
    if (index < staged_end()) {
      const int32_t at = placed(index);
      if (at == 0) {
        put_places(index, staged_end(), false);
      }
      copying_ = Tile::kPlaces * at;
    }
  }
  TESSERA_DEVICE void copy_piece(int32_t piece) {
    memory_.stages.copy(piece, memory_.places + copying_);
  }
  // Waits for a piece of tile `index`, and begins to copy a later one to the stage of the piece
  // before. Returns: the piece's stage.
  TESSERA_DEVICE const std::byte* next_piece(int32_t index, int32_t piece) {
    using Stages = decltype(memory_.stages);
    simt::wait_for_copies<Stages::kStages - 2>();
    simt::sync_warp();
    const int32_t later = piece + Stages::kStages - 1;
    if (later == Stages::kPieces) {
      select_tile(index + 1);
    }
    if (later < Stages::kPieces || copying_ >= 0) {
      copy_piece(later % Stages::kPieces);
    }
    simt::end_copy_group();
    return memory_.stages.of[piece % Stages::kStages];
  }

  TESSERA_DEVICE void attend(int32_t index, bool is_dense) {
    auto at = tiles_.at(index, is_dense);
    Tile& tile = at.tile;
    tile.first_place = Tile::kPlaces * placed(index);
    // No tile of one format is empty. With stages, barriers are in next_piece() and put_places().
    if constexpr (!kStaged) {
      if (tile.begin >= tile.end) {
        return;
      }
      simt::sync_warp();  // the weights and values of the previous tile have been read
    }
    const auto next = [&](auto piece) { return next_piece(index, piece); };
    float weights[kProducts][8];
    scores_of(tile, is_dense, next, weights);
    if (task_.scores_left != nullptr) {
      leave(index, tile.layout.format.is_codes(), weights);
    }
    float correction[kProducts];
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      const auto range = tiles_.seen(pair(product), is_dense, at.first, at.tokens);
      correction[product] =
          to_weights(product, range, tile.layout.format.is_codes(), weights[product]);
    }
    if constexpr (kStaged) {
      add_staged_values(tile, is_dense, next, weights, correction);
    } else {
      add_values(tile, weights, correction);
    }
  }

  TESSERA_DEVICE Parts& parts() const { return warp_parts<Memory, Parts>(); }

  // next(piece): next_piece() of the tile.
  template <class Next>
  TESSERA_DEVICE void scores_of(const Tile& tile, bool is_dense, Next&& next,
                                float (&scores)[kProducts][8]) {
    if constexpr (has_halves<Rows>()) {
      staged_half_scores<kDim, kProducts>(memory_, half_queries_, next, scores);
    } else if constexpr (!Rows::kOneFormat) {
      tile_scores(
          memory_, tile, task_.pairs, args_.scale * kLog2E,
          [this](int32_t pair) { return query(pair); }, scores);
    } else if (is_dense) {
      half_scores<kDim, kProducts>(
          memory_, tile,
          [this](int32_t product, int32_t chunk) {
            if constexpr (kCopied) {
              return memory_.halves.fragment(product, chunk);
            } else {
              return fragment(product, chunk);
            }
          },
          scores);
    } else if constexpr (kCopied) {
      copied_scores(tile, scores);
    } else {
      staged_code_scores<Rows::kFormat.key_bits, kDim, kProducts>(memory_.codes, memory_.stages,
                                                                  next, scores);
    }
  }
  // Computes the scores of a tile whose parts are copied. Its values come while scores become
  // weights.
  TESSERA_DEVICE void copied_scores(const Tile& tile, float (&scores)[kProducts][8]) {
    const TilePlace* places = memory_.places + tile.first_place;
    parts().copy({places[0].keys, places[1].keys, places[2].keys, places[3].keys});
    parts().template wait<kKeyUnits>(tile);
    sparse_scores(memory_, tile, parts(), scores);
    parts().copy({places[0].values, places[1].values, places[2].values, places[3].values});
  }

  // Writes the lane's scores, two runs of four tokens. Scores of tokens that the pair does not see
  // are written too, but never read.
  TESSERA_DEVICE void leave(int32_t index, bool codes, const float (&scores)[kProducts][8]) const {
    float* tile = task_.scores_left + index * attention_weight_tile_floats(task_.heads);
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      if (pair(product) < task_.pairs) {
        float* to = tile + (task_.of[pair(product)].head - task_.first_head) * kAttentionTile;
        TESSERA_UNROLL
        for (int32_t first = 0; first < 8; first += 4) {
          simt::Words words;
          TESSERA_UNROLL
          for (int32_t i = 0; i < 4; ++i) {
            words.at[i] = std::bit_cast<uint32_t>(scores[product][first + i]);
          }
          simt::store_words(to + token_of_score(codes, first), words);
        }
      }
    }
  }

  // Turns a pair's scores of the lane's tokens into weights.
  // Returns: factor of the sums so far.
  TESSERA_DEVICE float to_weights(int32_t product, const SeenTokens& range, bool codes,
                                  float (&weights)[8]) {
    const float before = maximum_[product];
    float maximum = before;
    if (range.begin > 0 || range.end < kKvGroup) {
      TESSERA_UNROLL
      for (int32_t i = 0; i < 8; ++i) {
        const int32_t token = token_of_score(codes, i);
        const bool visible = (token >= range.begin && token < range.end) || token >= range.older;
        weights[i] = visible ? weights[i] : -INFINITY;
      }
    }
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      maximum = simt::max(maximum, weights[i]);
    }
    TESSERA_UNROLL
    for (int32_t mask = 4; mask < simt::kWarp; mask *= 2) {
      maximum = simt::max(maximum, simt::shuffle_xor(maximum, mask));
    }
    const float correction = simt::exp2(before - maximum);
    float sum = 0;
    TESSERA_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      weights[i] = simt::exp2(weights[i] - maximum);
      sum += weights[i];
    }
    sum_[product] = simt::fma(sum_[product], correction, sum);
    maximum_[product] = maximum;
    return correction;
  }

  template <class Next>
  TESSERA_DEVICE void add_staged_values(const Tile& tile, bool is_dense, Next&& next,
                                        const float (&weights)[kProducts][8],
                                        const float (&correction)[kProducts]) {
    if constexpr (has_halves<Rows>()) {
      put_half_weights<kDim, kProducts>(memory_, weights);
      const auto next_seen = [&](int32_t piece) {
        const std::byte* stage = next(piece);
        if (!tile.is_full()) {
          memory_.stages.clear_unseen(piece, tile);
        }
        return stage;
      };
      add_staged_half_values<kDim, kProducts>(memory_, next_seen, correction, out_);
    } else if (is_dense) {
      add_values_of_halves(tile, weights, correction);
    } else {
      const auto& stages = memory_.stages;
      const std::byte* first = next(stages.kKeyPieces);
      const CodeWeights<kProducts> codes = put_code_weights<kDim, kProducts>(
          memory_, tile, weights, [&](int32_t set) { return stages.value_scales_of(set); });
      add_zeros(codes.zeros, correction);
      add_staged_code_values<Rows::kFormat.value_bits, kDim, kProducts,
                             std::remove_cvref_t<decltype(stages)>>(memory_, first, next, codes,
                                                                    correction, out_);
    }
  }

  // Adds the values of a tile that has no stages.
  TESSERA_DEVICE void add_values(const Tile& tile, float (&weights)[kProducts][8],
                                 const float (&correction)[kProducts]) {
    const KvFormat format = tile.layout.format;
    if (format.is_sparse()) {
      add_values_of_sparse(tile, weights, correction);
    } else if (format == kKvF16) {
      add_values_of_halves(tile, weights, correction);
    } else if constexpr (!Rows::kOneFormat) {
      if (format.is_codes()) {
        add_values_of_codes(tile, weights, correction);
      } else {
        add_zeros({}, correction);
        put_float_weights(memory_, weights);
        add_float_values(memory_, tile, correction, out_);
      }
    }
  }
  TESSERA_DEVICE void add_values_of_halves(const Tile& tile, const float (&weights)[kProducts][8],
                                           const float (&correction)[kProducts]) {
    add_zeros({}, correction);
    put_half_weights<kDim, kProducts>(memory_, weights);
    add_half_values<Channels, kDim, kProducts>(memory_, tile, correction, out_);
  }
  TESSERA_DEVICE void add_values_of_sparse(const Tile& tile, float (&weights)[kProducts][8],
                                           const float (&correction)[kProducts]) {
    add_zeros({}, correction);
    float step[kProducts];
    put_sparse_weights(memory_, tile, weights, step);
    if constexpr (kCopied) {
      parts().template wait<kValueUnits>(tile);
      add_sparse_values<Channels>(memory_, tile, parts(), step, correction, out_);
    } else {
      SparseParts<kDim> values(sparse_values(tile.layout), tile, parts());
      add_sparse_values<Channels>(memory_, tile, values, step, correction, out_);
    }
  }
  TESSERA_DEVICE void add_values_of_codes(const Tile& tile, const float (&weights)[kProducts][8],
                                          const float (&correction)[kProducts]) {
    const CodeWeights<kProducts> codes =
        put_code_weights<kDim, kProducts>(memory_, tile, weights, [&](int32_t set) {
          const TilePlace& place = memory_.places[tile.first_place + 2 * set + simt::lane() / 16];
          const f16* from = place.value_scales + simt::lane() / 4 % 4 * 4;
          return TokenScales{FourScales::at(from), FourScales::at(from + place.zeros)};
        });
    add_zeros(codes.zeros, correction);
    switch (tile.layout.format.value_bits) {
      case 8:
        return add_code_values<8>(memory_, tile, codes, correction, out_);
      case 4:
        return add_code_values<4>(memory_, tile, codes, correction, out_);
      case 2:
        return add_code_values<2>(memory_, tile, codes, correction, out_);
      default:
        return add_code_values<1>(memory_, tile, codes, correction, out_);
    }
  }

  TESSERA_DEVICE void add_zeros(const float (&zeros)[kProducts],
                                const float (&correction)[kProducts]) {
    if constexpr (has_codes<Rows>()) {
      TESSERA_UNROLL
      for (int32_t product = 0; product < kProducts; ++product) {
        float& sum = memory_.codes.zeros[product][simt::lane()];
        sum = sum * correction[product] + zeros[product];
      }
    }
  }

  const AttentionArgs& args_;
  const WarpTask& task_;
  Memory& memory_;
  const RowTiles<kDim, Rows> tiles_;
  float maximum_[kProducts];
  float sum_[kProducts];    // over the lane's tokens; over all tokens after run()
  float zeros_[kProducts];  // over all tokens after run()
  float out_[kProducts][kBlocks][4];
  int32_t copying_;  // first place of the tile whose pieces are copied; negative: there is none
  // The queries' fragments, in kernels for f16.
  simt::WordPair half_queries_[kProducts][has_halves<Rows>() ? kDim / 16 : 1];
};

}  // namespace tessera::cuda
