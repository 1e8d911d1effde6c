#include "kernels/cpu/attention/tile_selection.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <span>

#include "base/check.h"

namespace tessera {
namespace {

constexpr int32_t kTilesAhead = 2;  // whose sketches are prefetched
constexpr size_t kLineBytes = 64;
constexpr float kLeast = std::numeric_limits<float>::lowest();

// Each tier may end with a partly filled tile.
int64_t max_tiles(int32_t context) {
  return int64_t{context} / kAttentionTile + 2;
}

// Tokens of a tile that are in one page.
struct TilePart {
  const KvPageLayout* layout;
  const std::byte* page;
  int32_t first_block;  // of the page's sketch
  int32_t end_block;
};

// Pages of the tiles of one row.
class RowSketches {
 public:
  RowSketches(const KvPagesView& pages, const RowTokens& row) : pages_(pages), row_(row) {}

  // Calls each(part) for the pages of a tile.
  template <class Each>
  void for_each_part(int32_t tile, const Each& each) const {
    const bool is_high = tile < row_.high_tiles();
    const KvPageLayout& layout = *(is_high ? row_.high_layout : row_.low_layout);
    const int32_t tokens = is_high ? row_.high : row_.low;
    int32_t token = (is_high ? tile : tile - row_.high_tiles()) * kAttentionTile;
    const int32_t end = std::min(token + kAttentionTile, tokens);
    while (token < end) {
      const int32_t entry = token / layout.capacity;
      const int32_t page_begin = entry * layout.capacity;
      const int32_t page_end = std::min(end, page_begin + layout.capacity);
      each(TilePart{&layout, page(is_high ? entry : pages_.row_pages - 1 - entry),
                    (token - page_begin) / kSketchTokens,
                    static_cast<int32_t>(div_ceil(page_end - page_begin, kSketchTokens))});
      token = page_end;
    }
  }

  // Returns: the parts of a sketch that a tile's tokens in its first page need: the mean and the
  // scales, then the codes.
  std::array<std::span<const std::byte>, 2> first_sketch(int32_t tile) const {
    std::array<std::span<const std::byte>, 2> found;
    for_each_part(tile, [&found](const TilePart& part) {
      const KeySketchLayout parts{part.layout->head_dim, part.layout->capacity};
      const std::byte* const sketch = key_sketch(*part.layout, part.page);
      const std::byte* const codes = sketch + parts.codes_offset();
      if (found[0].empty()) {
        found = {std::span(sketch, codes), std::span(codes + part.first_block * parts.block_bytes(),
                                                     codes + part.end_block * parts.block_bytes())};
      }
    });
    return found;
  }

 private:
  const std::byte* page(int32_t entry) const {
    const int32_t page_id = row_.page_ids[entry];
    TESSERA_CHECK(page_id >= 0, "attention: the row has no page for a token");
    return pages_.page(page_id);
  }

  const KvPagesView& pages_;
  const RowTokens& row_;
};

// Raises each tile's rank to the highest estimate of these heads, relative to the head's highest.
class Ranks {
 public:
  Ranks(const RowSketches& row, int32_t tiles, float* ranks)
      : row_(row), tiles_(tiles), ranks_(ranks) {
    std::fill_n(ranks, tiles, kLeast);
  }

  // estimates: [tiles, heads], written.
  void raise(const SketchQueries& queries, SketchKernel kernel, float* estimates) const {
    const int32_t heads = queries.heads();
    float best[kMaxHeads];
    std::fill_n(best, kMaxHeads, kLeast);
    for (int32_t tile = 0; tile < tiles_; ++tile) {
      if (tile + kTilesAhead < tiles_) {
        // In place: the compiler removes calls of functions that only prefetch. The sketches are
        // far apart, so nothing else fetches them.
        for (const std::span<const std::byte> part : row_.first_sketch(tile + kTilesAhead)) {
          for (size_t at = 0; at < part.size(); at += kLineBytes) {
            __builtin_prefetch(&part[at]);
          }
        }
      }
      float highest[kMaxHeads];
      std::fill_n(highest, kMaxHeads, kLeast);
      row_.for_each_part(tile, [&](const TilePart& part) {
        float of_part[kMaxHeads];
        queries.estimate(*part.layout, part.page, part.first_block, part.end_block, kernel,
                         of_part);
        raise_each(highest, of_part);
      });
      raise_each(best, highest);
      std::copy_n(highest, heads, estimates + int64_t{tile} * heads);
    }
    for (int32_t tile = 0; tile < tiles_; ++tile, estimates += heads) {
      for (int32_t head = 0; head < heads; ++head) {
        ranks_[tile] = std::max(ranks_[tile], estimates[head] - best[head]);
      }
    }
  }

 private:
  static constexpr int32_t kMaxHeads = SketchQueries::kMaxHeads;

  static void raise_each(float* highest, const float* of_heads) {
    for (int32_t head = 0; head < kMaxHeads; ++head) {
      highest[head] = std::max(highest[head], of_heads[head]);
    }
  }

  const RowSketches& row_;
  const int32_t tiles_;
  float* const ranks_;
};

// Marks tiles that are always read.
void require_ends(const RowTokens& row, float* ranks) {
  const auto require = [&](int32_t first, int32_t end) {
    if (first < end) {
      ranks[first] = std::numeric_limits<float>::infinity();
      ranks[end - 1] = std::numeric_limits<float>::infinity();
    }
  };
  require(0, row.high_tiles());
  require(row.high_tiles(), row.high_tiles() + row.low_tiles());
}

}  // namespace

// A row has a list and ranks of its tiles, and estimates of at most kMaxHeads query heads.
int64_t TileSelection::scratch_bytes(int64_t rows, int64_t heads, int32_t context) {
  const int64_t floats = 1 + std::min<int64_t>(heads, SketchQueries::kMaxHeads);
  return round_up(
      rows * max_tiles(context) * (int64_t{sizeof(int32_t)} + floats * int64_t{sizeof(float)}), 64);
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

float* TileSelection::ranks(int64_t row) const {
  const int64_t floats = 1 + std::min(heads(), SketchQueries::kMaxHeads);
  return reinterpret_cast<float*>(list(rows())) + row * floats * max_tiles(longest_);
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

void TileSelection::choose(int64_t row, SketchKernel kernel) const {
  const SequenceSpan& sequence = span(row);
  const RowTokens tokens = this->tokens(row, 0, sequence.last_group());
  if (tokens.read == nullptr) {
    return;
  }
  const int32_t tiles = tokens.high_tiles() + tokens.low_tiles();
  int32_t* const chosen = list(row);
  float* const ranks = this->ranks(row);
  const int32_t head_dim = args_.pages.head_dim;
  const float* const queries = args_.queries.row(sequence.first_row).data() +
                               row % args_.pages.kv_heads * heads() * head_dim;
  const RowSketches sketches(args_.pages, tokens);
  const Ranks of_tiles(sketches, tiles, ranks);
  for (int32_t head = 0; head < heads(); head += SketchQueries::kMaxHeads) {
    const SketchQueries some(queries + int64_t{head} * head_dim,
                             std::min(heads() - head, SketchQueries::kMaxHeads), head_dim,
                             args_.scale);
    of_tiles.raise(some, kernel, ranks + max_tiles(longest_));
  }
  require_ends(tokens, ranks);
  std::iota(chosen, chosen + tiles, 0);
  const auto before = [ranks](int32_t a, int32_t b) {
    return ranks[a] != ranks[b] ? ranks[a] > ranks[b] : a < b;
  };
  std::nth_element(chosen, chosen + tokens.read_tiles, chosen + tiles, before);
  std::sort(chosen, chosen + tokens.read_tiles);
}

}  // namespace tessera
