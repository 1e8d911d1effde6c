#include <cstring>

#include "base/check.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/pages/kv_ops.h"

namespace tessera::scalar {
namespace {

// The bytes of a snapshot, written or read from first to last.
class Tape {
 public:
  explicit Tape(std::span<std::byte> bytes) : rest_(bytes) {}
  void swap_out(const void* from, int64_t count) {
    std::memcpy(next(count), from, static_cast<size_t>(count));
  }
  void swap_in(void* to, int64_t count) {
    std::memcpy(to, next(count), static_cast<size_t>(count));
  }

 private:
  std::byte* next(int64_t count) {
    TESSERA_CHECK(count <= std::ssize(rest_),
                  "kv_swap_out, kv_swap_in: a snapshot of too few bytes");
    std::byte* at = rest_.data();
    rest_ = rest_.subspan(static_cast<size_t>(count));
    return at;
  }
  std::span<std::byte> rest_;
};

// Visits every row of the slot: first its counts, then move(bytes, count) for each of its parts.
class Snapshot {
 public:
  Snapshot(const KvSnapshotArgs& args)
      : pool_(args.pool), pages_(args.pool.pages), snapshot_(args.snapshot), tape_(args.bytes) {
    TESSERA_CHECK(snapshot_.slot >= 0 && snapshot_.slot < pool_.slots,
                  "kv_swap_out, kv_swap_in: no such slot");
  }

  void swap_out() {
    each_row([&](int64_t row) {
      tape_.swap_out(&pages_.rows[row], sizeof(KvRow));
      each_part(row, [&](std::byte* part, int64_t count) { tape_.swap_out(part, count); });
    });
  }

  void swap_in() {
    each_row([&](int64_t row) {
      tape_.swap_in(&pages_.rows[row], sizeof(KvRow));
      take_pages(row);
      each_part(row, [&](std::byte* part, int64_t count) { tape_.swap_in(part, count); });
    });
  }

 private:
  template <class Body>
  void each_row(Body&& body) const {
    const int64_t first = pages_.row_index(snapshot_.slot, 0, 0);
    for (int64_t row = first; row < first + int64_t{pages_.layers} * pages_.kv_heads; ++row) {
      body(row);
    }
  }

  // Visits the table entries of a row's tokens, from the left end, then from the right end.
  template <class Visit>
  void each_entry(int64_t row, Visit&& visit) const {
    int32_t* table = pool_.tables + row * pages_.row_pages;
    const KvRow counts = pages_.rows[row];
    const int64_t left = div_ceil(counts.high, pages_.layouts[snapshot_.tiers.high].capacity);
    const int64_t right = div_ceil(counts.low, pages_.layouts[snapshot_.tiers.low].capacity);
    const int64_t head = row - pages_.row_index(snapshot_.slot, 0, 0);
    for (int64_t i = snapshot_.passed_in(pool_, head); i < left; ++i) {
      visit(table[i]);
    }
    for (int64_t i = 0; i < right; ++i) {
      visit(table[pages_.row_pages - 1 - i]);
    }
  }

  void take_pages(int64_t row) const {
    const FreeList free_list(pool_);
    each_entry(row, [&](int32_t& entry) {
      TESSERA_CHECK(entry == kNoPage, "kv_swap_in: the slot holds pages");
      entry = free_list.take();
    });
  }

  template <class Move>
  void each_part(int64_t row, Move&& move) const {
    each_entry(row, [&](int32_t entry) { move(pages_.page(entry), pages_.page_bytes); });
    move(pages_.residual(row), pages_.residual_layout.page_bytes);
    if (pages_.query_sums != nullptr) {
      move(reinterpret_cast<std::byte*>(pages_.query_sum(row, 0)), kv_query_sum_bytes(pages_));
    }
    if (pages_.scores_all_tokens()) {
      const KvRow counts = pages_.rows[row];
      KvTokenScore* token_scores = pages_.token_score_row(row);
      const int32_t left = counts.high + snapshot_.tokens % kKvGroup;
      move(reinterpret_cast<std::byte*>(token_scores), left * int64_t{sizeof(KvTokenScore)});
      move(reinterpret_cast<std::byte*>(token_scores + pages_.row_token_scores - counts.low),
           counts.low * int64_t{sizeof(KvTokenScore)});
    }
  }

  const KvPool& pool_;
  const KvPagesView& pages_;
  const KvSnapshot& snapshot_;
  Tape tape_;
};

}  // namespace

void kv_swap_out(const KvSnapshotArgs& args, Stream) {
  Snapshot(args).swap_out();
}

void kv_swap_in(const KvSnapshotArgs& args, Stream) {
  Snapshot(args).swap_in();
}

}  // namespace tessera::scalar
