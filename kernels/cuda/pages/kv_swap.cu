#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/pages/pool_plan.h"

// A snapshot has the CPU's bytes: for each row its counts, pages, residual buffer, sums of queries
// and token scores. It passes through the stream's staging memory, slice by slice, because kernels
// cannot access the caller's host memory. One launch writes (reads) a slice at the speed of the
// bus.

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = 256;

// Bytes [begin, end) of the snapshot, and their address.
struct Slice {
  int64_t begin;
  int64_t end;
  std::byte* bytes;
};

// Page-table entries in use at the left and right end of a row, and where the left ones begin.
struct RowPages {
  int32_t first;
  int32_t left;
  int32_t right;

  // Returns: the row's table entry of its page `i`.
  constexpr int32_t entry(const KvPagesView& pages, int32_t i) const {
    return i < left ? first + i : pages.row_pages - 1 - (i - left);
  }
};
constexpr RowPages row_pages(const KvPool& pool, const KvSnapshot& snapshot, int64_t head,
                             KvRow counts) {
  const int32_t high = pool.pages.layouts[snapshot.tiers.high].capacity;
  const int32_t low = pool.pages.layouts[snapshot.tiers.low].capacity;
  const int32_t passed = snapshot.passed_in(pool, head);
  return {passed, static_cast<int32_t>(div_ceil(counts.high, high)) - passed,
          static_cast<int32_t>(div_ceil(counts.low, low))};
}
constexpr int64_t row_bytes(const KvPool& pool, const KvSnapshot& snapshot, int64_t head,
                            KvRow counts) {
  const KvPagesView& pages = pool.pages;
  const RowPages held = row_pages(pool, snapshot, head, counts);
  const int64_t token_scores = counts.high + snapshot.tokens % kKvGroup + counts.low;
  return int64_t{sizeof(KvRow)} + (held.left + held.right) * pages.page_bytes +
         pages.residual_layout.page_bytes + kv_query_sum_bytes(pages) +
         (pages.scores_all_tokens() ? token_scores * int64_t{sizeof(KvTokenScore)} : 0);
}

// Copies the part of one row that is in a slice, in either direction. Every part is whole words of
// 8 bytes.
class RowSnapshot {
 public:
  TESSERA_DEVICE RowSnapshot(const Slice& slice, int64_t begin, bool swap_out)
      : slice_(slice), at_(begin), swap_out_(swap_out) {}

  TESSERA_DEVICE void move(void* part, int64_t bytes) {
    const int64_t begin = at_ > slice_.begin ? at_ : slice_.begin;
    const int64_t end = at_ + bytes < slice_.end ? at_ + bytes : slice_.end;
    for (int64_t i = begin + 8 * thread(); i < end; i += 8 * kThreads) {
      auto* of_row = reinterpret_cast<uint64_t*>(static_cast<std::byte*>(part) + i - at_);
      auto* of_snapshot = reinterpret_cast<uint64_t*>(slice_.bytes + i - slice_.begin);
      *(swap_out_ ? of_snapshot : of_row) = *(swap_out_ ? of_row : of_snapshot);
    }
    at_ += bytes;
  }

 private:
  const Slice& slice_;
  int64_t at_;
  bool swap_out_;
};

// One block for each row. `offsets`: [rows + 1], byte offsets of rows in the snapshot.
TESSERA_KERNEL(kThreads)
move_kernel(KvPool pool, KvSnapshot snapshot, const int64_t* offsets, Slice slice, bool swap_out) {
  const KvPagesView& pages = pool.pages;
  const int64_t row = pages.row_index(snapshot.slot, 0, 0) + block_x();
  if (offsets[block_x()] >= slice.end || offsets[block_x() + 1] <= slice.begin) {
    return;
  }
  RowSnapshot rows(slice, offsets[block_x()], swap_out);
  const KvRow counts = pages.rows[row];
  const RowPages held = row_pages(pool, snapshot, block_x(), counts);
  const int32_t* table = pages.table(row);
  sync_block();  // at swap-in the counts are already set; they are copied again, unchanged
  rows.move(&pages.rows[row], sizeof(KvRow));
  for (int32_t i = 0; i < held.left + held.right; ++i) {
    rows.move(pages.page(table[held.entry(pages, i)]), pages.page_bytes);
  }
  rows.move(pages.residual(row), pages.residual_layout.page_bytes);
  if (pages.query_sums != nullptr) {
    rows.move(pages.query_sum(row, 0), kv_query_sum_bytes(pages));
  }
  if (pages.scores_all_tokens()) {
    KvTokenScore* token_scores = pages.token_score_row(row);
    const int64_t left = counts.high + snapshot.tokens % kKvGroup;
    rows.move(token_scores, left * int64_t{sizeof(KvTokenScore)});
    rows.move(token_scores + pages.row_token_scores - counts.low,
              counts.low * int64_t{sizeof(KvTokenScore)});
  }
}

// Sets the rows' counts and takes pages for them.
TESSERA_KERNEL(kPoolThreads) take_kernel(KvPool pool, KvSnapshot snapshot, Plan<KvRow> counts) {
  BlockFreeList free_list(pool, shared<BlockFreeList::Memory>());
  const KvPagesView& pages = pool.pages;
  for (int64_t first = 0; first < counts.count; first += kPoolThreads) {
    const int64_t i = first + thread();
    const int64_t row = pages.row_index(snapshot.slot, 0, 0) + i;
    RowPages held = {};
    if (i < counts.count) {
      held = row_pages(pool, snapshot, i, counts.data[i]);
      simt::check(held.first + held.left + held.right <= pages.row_pages);
      pages.rows[row] = counts.data[i];
    }
    free_list.take(held.left + held.right);
    int32_t* table = pool.tables + row * pages.row_pages;
    for (int32_t p = 0; p < held.left + held.right; ++p) {
      int32_t& entry = table[held.entry(pages, p)];
      simt::check(entry == kNoPage);
      entry = free_list.page(p);
    }
  }
  free_list.finish();
}

std::vector<int64_t> offsets_of(const KvSnapshotArgs& args, std::span<const KvRow> counts) {
  std::vector<int64_t> offsets{0};
  for (const KvRow& row : counts) {
    const int64_t head = std::ssize(offsets) - 1;
    offsets.push_back(offsets.back() + row_bytes(args.pool, args.snapshot, head, row));
  }
  TESSERA_CHECK(offsets.back() <= std::ssize(args.bytes),
                "kv_swap_out, kv_swap_in: a snapshot of too few bytes");
  return offsets;
}

// Copies a snapshot slice by slice. before(slice) and after(slice) do the host's part of the copy.
template <class Before, class After>
void move_slices(const KvSnapshotArgs& args, std::span<const int64_t> offsets, bool swap_out,
                 Stream stream, const Before& before, const After& after) {
  const std::span<std::byte> memory = staging(stream);
  const int64_t max = std::ssize(memory) / 8 * 8;
  for (int64_t begin = 0; begin < offsets.back(); begin += max) {
    const int64_t end = begin + max < offsets.back() ? begin + max : offsets.back();
    const Slice slice{begin, end, memory.data()};
    before(slice);
    launch(stream, {.grid_x = static_cast<int32_t>(slot_rows(args.pool)), .threads = kThreads},
           move_kernel, args.pool, args.snapshot, mirror(offsets, stream), slice, swap_out);
    wait(stream);
    after(slice);
  }
}

void check_slot(const KvSnapshotArgs& args) {
  TESSERA_CHECK(args.snapshot.slot >= 0 && args.snapshot.slot < args.pool.slots,
                "kv_swap_out, kv_swap_in: no such slot");
}

}  // namespace

void kv_swap_out(const KvSnapshotArgs& args, Stream stream) {
  check_slot(args);
  const KvPagesView& pages = args.pool.pages;
  std::vector<KvRow> counts(static_cast<size_t>(slot_rows(args.pool)));
  download(counts.data(), pages.rows + pages.row_index(args.snapshot.slot, 0, 0),
           std::ssize(counts) * int64_t{sizeof(KvRow)}, stream);
  const std::vector<int64_t> offsets = offsets_of(args, counts);
  move_slices(
      args, offsets, true, stream, [](const Slice&) {},
      [&](const Slice& slice) {
        std::memcpy(args.bytes.data() + slice.begin, slice.bytes,
                    static_cast<size_t>(slice.end - slice.begin));
      });
}

void kv_swap_in(const KvSnapshotArgs& args, Stream stream) {
  check_slot(args);
  std::vector<KvRow> counts;
  int64_t at = 0;
  for (int64_t row = 0; row < slot_rows(args.pool); ++row) {
    TESSERA_CHECK(at + int64_t{sizeof(KvRow)} <= std::ssize(args.bytes),
                  "kv_swap_out, kv_swap_in: a snapshot of too few bytes");
    std::memcpy(&counts.emplace_back(), args.bytes.data() + at, sizeof(KvRow));
    at += row_bytes(args.pool, args.snapshot, row, counts.back());
  }
  const std::vector<int64_t> offsets = offsets_of(args, counts);
  launch(stream, kOneBlock, take_kernel, args.pool, args.snapshot,
         plan_of(std::span<const KvRow>(counts), stream));
  move_slices(
      args, offsets, false, stream,
      [&](const Slice& slice) {
        std::memcpy(slice.bytes, args.bytes.data() + slice.begin,
                    static_cast<size_t>(slice.end - slice.begin));
      },
      [](const Slice&) {});
}

}  // namespace tessera::cuda
