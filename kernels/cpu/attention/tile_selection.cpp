#include "kernels/cpu/attention/tile_selection.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/check.h"

namespace tessera {
namespace {

constexpr int32_t kTilesAhead = 8;  // whose bounds are prefetched
constexpr float kLeast = std::numeric_limits<float>::lowest();

// Each tier may end with a partly filled tile.
int64_t max_tiles(int32_t context) {
  return int64_t{context} / kAttentionTile + 2;
}

// One row's tiles and pages.
class RowBounds {
 public:
  RowBounds(const KvPagesView& pages, const RowTokens& row, const BoundQuery& query,
            BoundDotOp multiply)
      : pages_(pages), row_(row), query_(query), multiply_(multiply) {}

  // Returns: the largest bound of the pages of a tile.
  float of_tile(int32_t tile) const {
    const bool is_high = tile < row_.high_tiles();
    const int32_t capacity = (is_high ? row_.high_layout : row_.low_layout)->capacity;
    const int32_t tokens = is_high ? row_.high : row_.low;
    const int32_t first = (is_high ? tile : tile - row_.high_tiles()) * kAttentionTile;
    const int32_t last = std::min(first + kAttentionTile, tokens) - 1;
    float bound = kLeast;
    for (int32_t entry = first / capacity; entry <= last / capacity; ++entry) {
      bound = std::max(bound, of_page(is_high ? entry : pages_.row_pages - 1 - entry));
    }
    return bound;
  }

  // Prefetches the bounds of a tile's first page. They are far apart, so nothing else would.
  void fetch(int32_t tile) const {
    const bool is_high = tile < row_.high_tiles();
    const int32_t capacity = (is_high ? row_.high_layout : row_.low_layout)->capacity;
    const int32_t entry = (is_high ? tile : tile - row_.high_tiles()) * kAttentionTile / capacity;
    const std::byte* const bounds =
        key_bounds(pages_, page(is_high ? entry : pages_.row_pages - 1 - entry));
    for (int32_t at = 0; at < 2 * pages_.head_dim; at += kLineBytes) {
      __builtin_prefetch(bounds + at);
    }
  }

 private:
  static constexpr int32_t kLineBytes = 64;

  std::byte* page(int32_t entry) const {
    const int32_t page_id = row_.page_ids[entry];
    TESSERA_CHECK(page_id >= 0, "attention: the row has no page for a token");
    return pages_.page(page_id);
  }
  float of_page(int32_t entry) const {
    return query_.bound(key_bounds(pages_, page(entry)), multiply_);
  }

  const KvPagesView& pages_;
  const RowTokens& row_;
  const BoundQuery& query_;
  const BoundDotOp multiply_;
};

// Marks tiles that are always read.
void require_ends(const RowTokens& row, float* bounds) {
  const auto require = [&](int32_t first, int32_t end) {
    if (first < end) {
      bounds[first] = std::numeric_limits<float>::infinity();
      bounds[end - 1] = std::numeric_limits<float>::infinity();
    }
  };
  require(0, row.high_tiles());
  require(row.high_tiles(), row.high_tiles() + row.low_tiles());
}

}  // namespace

int64_t TileSelection::scratch_bytes(int64_t rows, int32_t context) {
  return round_up(rows * max_tiles(context) * int64_t{sizeof(int32_t) + sizeof(float)}, 64);
}

TileSelection::TileSelection(const AttentionArgs& args, std::byte* scratch)
    : args_(args), lists_(reinterpret_cast<int32_t*>(scratch)) {
  for (const SequenceSpan& sequence : args.sequences) {
    longest_ = std::max(longest_, sequence.context);
    any_ = any_ || selects(args, sequence);
  }
}

int32_t* TileSelection::list(int64_t row) const {
  return lists_ + row * max_tiles(longest_);
}

RowTokens TileSelection::tokens(int64_t row, int64_t first_dense, int32_t group) const {
  const SequenceSpan& sequence = span(row);
  RowTokens tokens = row_tokens(args_, sequence, first_dense,
                                static_cast<int32_t>(row % args_.pages.kv_heads), group);
  if (selects(args_, sequence) && sequence.read_tiles < tokens.tiles() - 1) {
    tokens.read = list(row);
    tokens.read_tiles = sequence.read_tiles;
  }
  return tokens;
}

void TileSelection::choose(int64_t row, BoundDotOp multiply) const {
  const SequenceSpan& sequence = span(row);
  const RowTokens tokens = this->tokens(row, 0, sequence.last_group());
  if (tokens.read == nullptr) {
    return;
  }
  const int32_t tiles = tokens.high_tiles() + tokens.low_tiles();
  int32_t* const chosen = list(row);
  auto* const bounds = reinterpret_cast<float*>(list(rows())) + (chosen - lists_);
  const int32_t head_dim = args_.pages.head_dim;
  const int32_t heads = args_.query_heads / args_.pages.kv_heads;
  const float* queries =
      args_.queries.row(sequence.first_row).data() + row % args_.pages.kv_heads * heads * head_dim;
  const BoundQuery query(queries, heads, head_dim);
  const RowBounds row_bounds(args_.pages, tokens, query, multiply);
  for (int32_t tile = 0; tile < tiles; ++tile) {
    if (tile + kTilesAhead < tiles) {
      row_bounds.fetch(tile + kTilesAhead);
    }
    bounds[tile] = row_bounds.of_tile(tile);
  }
  require_ends(tokens, bounds);
  std::iota(chosen, chosen + tiles, 0);
  const auto before = [bounds](int32_t a, int32_t b) {
    return bounds[a] != bounds[b] ? bounds[a] > bounds[b] : a < b;
  };
  std::nth_element(chosen, chosen + tokens.read_tiles, chosen + tiles, before);
  std::sort(chosen, chosen + tokens.read_tiles);
}

}  // namespace tessera
