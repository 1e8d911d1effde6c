#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/low_rank/low_rank_ops.h"
#include "kernels/cpu/low_rank/tiles.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/matrix/half.h"

namespace tessera {
namespace {

constexpr int64_t kUpTileOutputs = 2 * kPanelOutputs;  // 4 KiB of B at rank 16
constexpr int64_t kSharesOfThread =
    4;  // that each thread claims of a loop, so that all end together

bool has_bf16(const LowRankMatrix& matrix) {
  return matrix.format == WeightFormat::bf16;
}

// Returns: bytes of a group of ranks of A, or of a panel of outputs of B.
int64_t tile_bytes(const LowRankMatrix& matrix) {
  const int64_t blocks = matrix.side == LowRankSide::narrows
                             ? div_ceil(matrix.cols, kLowRankBlock) * kTileRanks
                             : matrix.cols * kPanelBlocks;
  return blocks * low_rank_block_bytes(has_bf16(matrix));
}

// Calls tile(item, rows) for the items [0, count) of each adapter's rows, over the threads. Items
// of one adapter are neighbours in memory, so a thread claims several of them.
template <class Tile>
void for_low_rank_items(const LowRankArgs& args, int64_t count, Stream stream, const Tile& tile) {
  ThreadPool& pool = ThreadPool::of(stream);
  const int64_t items = std::ssize(args.rows) * count;
  const int64_t grain = std::max<int64_t>(1, items / (kSharesOfThread * pool.threads()));
  pool.parallel_for(items, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      tile(item % count, args.rows[static_cast<size_t>(item / count)]);
    }
  });
}

void narrow_item(const LowRankArgs& args, const LowRankTiles& tiles, int64_t item,
                 const LowRankRows& rows) {
  const LowRankMatrix& down = rows.product->down;
  const int64_t first = item * kTileRanks;
  if (first >= down.rows) return;
  tiles.down[has_bf16(down)]({.matrix = down.data + item * tile_bytes(down),
                              .inputs = down.cols,
                              .ranks = std::min(kTileRanks, down.rows - first),
                              .rows = rows.count,
                              .in = args.in.row(rows.first_row).data(),
                              .in_stride = args.in.stride,
                              .low = args.low.row(rows.first_low).data() + first,
                              .low_stride = args.low.stride});
}

int64_t up_items(const LowRankMatrix& up) {
  return div_ceil(up.rows, kUpTileOutputs);
}

void widen_item(const LowRankArgs& args, const LowRankTiles& tiles, int64_t item,
                const LowRankRows& rows) {
  for (const LowRankProduct::Part& part : rows.product->all()) {
    const LowRankMatrix& up = part.up;
    if (item >= up_items(up)) {
      item -= up_items(up);
      continue;
    }
    const int64_t first = item * kUpTileOutputs;
    tiles.up[has_bf16(up)]({.matrix = up.data + first / kPanelOutputs * tile_bytes(up),
                            .ranks = up.cols,
                            .outputs = std::min(kUpTileOutputs, up.rows - first),
                            .rows = rows.count,
                            .low = args.low.row(rows.first_low).data() + part.first_rank,
                            .low_stride = args.low.stride,
                            .out = args.out.row(rows.first_row).data() + part.first_output + first,
                            .out_stride = args.out.stride});
    return;
  }
}

void check_low_rank(const LowRankArgs& args) {
  for (const LowRankRows& rows : args.rows) {
    const LowRankMatrix& down = rows.product->down;
    TESSERA_CHECK(down.cols == args.in.cols && down.rows <= args.low.cols, "low_rank: shapes");
    TESSERA_CHECK(rows.first_row + rows.count <= args.in.rows &&
                      rows.first_row + rows.count <= args.out.rows &&
                      rows.first_low + rows.count <= args.low.rows,
                  "low_rank: rows");
    for (const LowRankProduct::Part& part : rows.product->all()) {
      TESSERA_CHECK(part.first_output + part.up.rows <= args.out.cols &&
                        part.first_rank + part.up.cols <= down.rows,
                    "low_rank: a part outside its product");
    }
  }
}

void multiply_low_rank(const LowRankArgs& args, const LowRankTiles& tiles, Stream stream) {
  check_low_rank(args);
  int64_t down_items = 0;
  int64_t all_up_items = 0;
  for (const LowRankRows& rows : args.rows) {
    int64_t own = 0;
    for (const LowRankProduct::Part& part : rows.product->all()) own += up_items(part.up);
    all_up_items = std::max(all_up_items, own);
    down_items = std::max(down_items, div_ceil(rows.product->down.rows, kTileRanks));
  }
  for_low_rank_items(args, down_items, stream, [&](int64_t item, const LowRankRows& rows) {
    narrow_item(args, tiles, item, rows);
  });
  for_low_rank_items(args, all_up_items, stream, [&](int64_t item, const LowRankRows& rows) {
    widen_item(args, tiles, item, rows);
  });
}

// Places of a matrix's blocks.
struct LowRankLayout {
  const LowRankMatrix& matrix;

  int64_t bytes() const {
    const int64_t height = matrix.side == LowRankSide::narrows ? kTileRanks : kPanelOutputs;
    return div_ceil(matrix.rows, height) * tile_bytes(matrix);
  }
  void store(int64_t row, int64_t col, float number) const {
    const bool narrows = matrix.side == LowRankSide::narrows;
    const int64_t tile = row / (narrows ? kTileRanks : kPanelOutputs);
    const int64_t block = narrows ? col / kLowRankBlock * kTileRanks + row % kTileRanks
                                  : col * kPanelBlocks + row % kPanelOutputs / kLowRankBlock;
    std::byte* to =
        matrix.data + tile * tile_bytes(matrix) + block * low_rank_block_bytes(has_bf16(matrix));
    const int64_t index = (narrows ? col : row) % kLowRankBlock;
    if (has_bf16(matrix)) {
      constexpr int64_t kWords = kLowRankBlock / 2;
      const bf16 rounded = to_bf16(number);
      std::memcpy(to + index % kWords * 4 + index / kWords * 2, &rounded, sizeof(rounded));
    } else {
      std::memcpy(to + index * 4, &number, sizeof(number));
    }
  }
};

}  // namespace

int64_t low_rank_bytes(const LowRankMatrix& matrix) {
  return LowRankLayout{matrix}.bytes();
}

void pack_low_rank(MatrixView<const float> source, const LowRankMatrix& matrix) {
  TESSERA_CHECK(matrix.format == WeightFormat::f32 || matrix.format == WeightFormat::bf16,
                "low_rank: a format without kernels");
  TESSERA_CHECK(source.rows == matrix.rows && source.cols == matrix.cols, "low_rank: shapes");
  const LowRankLayout layout{matrix};
  std::memset(matrix.data, 0, static_cast<size_t>(layout.bytes()));
  for (int64_t row = 0; row < source.rows; ++row) {
    for (int64_t col = 0; col < source.cols; ++col) {
      layout.store(row, col, source.row(row)[static_cast<size_t>(col)]);
    }
  }
}

namespace scalar {
void low_rank(const LowRankArgs& args, Stream stream) {
  multiply_low_rank(args, kLowRankTiles, stream);
}
}  // namespace scalar

namespace avx2 {
void low_rank(const LowRankArgs& args, Stream stream) {
  multiply_low_rank(args, kLowRankTiles, stream);
}
}  // namespace avx2

namespace avx512 {
void low_rank(const LowRankArgs& args, Stream stream) {
  multiply_low_rank(args, kLowRankTiles, stream);
}
}  // namespace avx512

}  // namespace tessera
