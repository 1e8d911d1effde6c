#pragma once

#include "kernels/cuda/attention/queries.h"
#include "kernels/cuda/attention/row_formats.h"
#include "kernels/cuda/pages/format_kind.h"

namespace tessera::cuda {

// Visible tokens of a tile: [begin, end), and those from `older` on.
struct SeenTokens {
  int32_t begin;
  int32_t end;
  int32_t older;
};

// A tile and its place in its row.
struct RowTile {
  bool is_high;
  int32_t in_tier;  // index in its tier
  int32_t first;    // position of its first token; matters with a sliding window only
  int32_t tokens;   // of the tier from the tile on
  Tile tile;
};

// Tiles of a task's row, in reading order. Owns nothing. kDim, Rows: as in WarpAttention.
template <int kDim, class Rows>
class RowTiles {
 public:
  // Requires: `args` and `task` outlive this.
  TESSERA_DEVICE RowTiles(const AttentionArgs& args, const WarpTask& task)
      : args_(args), task_(task) {}

  TESSERA_DEVICE int32_t head_dim() const { return Rows::kOneFormat ? kDim : args_.pages.head_dim; }

  // Returns: tokens that a pair sees. `first`: position of token 0; matters with a sliding window
  // only. `tokens`: tokens of the tier from the tile on.
  TESSERA_DEVICE SeenTokens seen(int32_t pair, bool is_dense, int32_t first, int32_t tokens) const {
    // Rows of one format have no window, and nothing reads results of pairs beyond the block's.
    if (!Rows::kOneFormat && pair >= task_.pairs) {
      return {0, 0, kKvGroup};
    }
    return {Rows::kOneFormat ? 0 : in_tile(first_visible(pair) - first),
            in_tile(is_dense ? position(pair) % kKvGroup + 1 : tokens),
            is_dense ? first_older() : kKvGroup};
  }

  // Returns: tile `index` of the row. `is_dense`: it is the last.
  TESSERA_DEVICE RowTile at(int32_t index, bool is_dense) const {
    RowTile of;
    of.is_high = index < task_.row.high_tiles();
    of.in_tier = of.is_high ? index : index - task_.row.high_tiles();
    of.first = kKvGroup * (is_dense ? task_.group : of.in_tier);
    of.tokens = (of.is_high ? task_.row.high : task_.row.low) - kKvGroup * of.in_tier;
    of.tile.layout = layout(of.is_high, is_dense);
    of.tile.is_dense = is_dense;
    // Positions ascend with pairs.
    of.tile.begin = seen(0, is_dense, of.first, of.tokens).begin;
    of.tile.end = is_dense && first_older() < kKvGroup
                      ? kKvGroup
                      : seen(task_.pairs - 1, is_dense, of.first, of.tokens).end;
    return of;
  }

 private:
  TESSERA_DEVICE int32_t position(int32_t pair) const {
    return task_.of[Rows::kOneFormat ? 0 : pair].position;
  }
  TESSERA_DEVICE int32_t first_visible(int32_t pair) const {
    const int32_t first = position(pair) + 1 - args_.sliding_window;
    return args_.sliding_window > 0 && first > 0 ? first : 0;
  }
  // Returns: place in the residual buffer of the first token of the previous group that is read.
  TESSERA_DEVICE int32_t first_older() const { return kKvGroup - task_.span.older_dense(); }
  TESSERA_DEVICE static int32_t in_tile(int32_t token) {
    return token < 0 ? 0 : token > kKvGroup ? kKvGroup : token;
  }

  TESSERA_DEVICE KvPageLayout layout(bool is_high, bool is_dense) const {
    KvPageLayout layout = is_dense  ? args_.pages.residual_layout
                          : is_high ? args_.pages.layouts[task_.span.tiers.high]
                                    : args_.pages.layouts[task_.span.tiers.low];
    if constexpr (Rows::kOneFormat) {
      layout.format = is_dense ? kKvF16 : Rows::kFormat;
      layout.head_dim = kDim;
      return layout;
    } else {
      return as_served(layout);
    }
  }

  const AttentionArgs& args_;
  const WarpTask& task_;
};

}  // namespace tessera::cuda
