#include "kernels/cuda/compress/job.h"
#include "kernels/cuda/pages/pool_plan.h"
#include "kernels/cuda/pages/token_codec.h"
#include "kernels/kv/query_weight.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / kWarp;
constexpr int32_t kBatch = kThreads / 2;

struct Moves {
  int32_t count;
  int32_t from[kBatch];  // places in their tiers
  int32_t to[kBatch];
};

// State of one row, in shared memory. One thread walks the decisions as
// kernels/cpu/compress/compaction.cpp does, but records moves instead of executing them. Then the
// block executes the batch of moves at once. No move of a batch reads bytes that another one
// writes, if demotions precede copies and all token scores are read before any is written. Copies
// go from the tier's end to gaps. A page that the low tier takes from the high one begins a new
// batch, so that its tokens have been read.
struct Walk {
  OfWarps<int32_t> sums;
  int32_t place;  // the next one to inspect
  int32_t high;   // tokens left
  int32_t low;
  int32_t left_pages;
  int32_t right_pages;
  int32_t spare;
  bool in_low;  // now filling gaps of the low tier, which come first
  bool done;
  Moves demotions;
  Moves copies;  // in the low tier if `copies_low`, else in the high one
  bool copies_low;
  KvTokenScore open_token_scores[kKvGroup];
  float key_weights[kMaxSparseDim];  // for the key score output_aware
  DecodedToken tokens[kWarps];       // each warp's token that is demoted
  SparseMemory sparse[kWarps];
};

class RowCompaction {
 public:
  TESSERA_DEVICE RowCompaction(const CompressJob& job, int32_t row, Walk& walk)
      : pages_(job.pool.pages),
        high_layout_(pages_.layouts[job.sequence.tiers.high]),
        low_layout_(pages_.layouts[job.sequence.tiers.low]),
        row_(token_row(job, row)),
        plan_(job.scratch.plans[row]),
        decisions_(job.scratch.decisions + int64_t{row} * pages_.row_token_scores),
        left_(job.pool.tables + row_.row * pages_.row_pages),
        right_(left_ + pages_.row_pages - 1),
        token_scores_(pages_.token_score_row(row_.row)),
        tokens_(job.sequence.tokens),
        weighs_keys_(job.sequence.policy.key_score == KvKeyScore::output_aware &&
                     plan_.demoted > 0),
        walk_(walk) {}

  TESSERA_DEVICE void run() {
    begin();
    const bool changes = plan_.demoted > 0 || plan_.dropped > 0;
    sync_block();
    while (changes && !walk_.done) {
      // The previous batch is executed, and all threads have read that it was not the last.
      sync_block();
      if (thread() == 0) {
        fill();
      }
      sync_block();
      demote();
      sync_block();
      copy();
      move_token_scores();
    }
    sync_block();
    for (int32_t i = thread(); changes && i < row_.open; i += kThreads) {
      token_scores_[high_entry(walk_.high + i)] = walk_.open_token_scores[i];
    }
    if (thread() == 0) {
      pages_.rows[row_.row] = {walk_.high, walk_.low};
      plan_.left_pages = walk_.left_pages;
      plan_.right_pages = walk_.right_pages;
      plan_.spare = walk_.spare;
    }
  }

 private:
  // The left end may have pages for more tokens than it holds; the right end never has. Token
  // scores of the open group follow those of the high tier. They are saved here, because token
  // scores of the low tier may need their places until the end.
  TESSERA_DEVICE void begin() {
    const int32_t right_pages =
        static_cast<int32_t>(div_ceil(row_.counts.low, low_layout_.capacity));
    int32_t left_pages = 0;
    for (int32_t i = thread(); i < pages_.row_pages - right_pages; i += kThreads) {
      left_pages += left_[i] != kNoPage ? 1 : 0;
    }
    left_pages = block_total(left_pages, walk_.sums);
    for (int32_t i = thread(); i < row_.open; i += kThreads) {
      walk_.open_token_scores[i] = token_scores_[high_entry(row_.counts.high + i)];
    }
    for (int32_t c = thread(); weighs_keys_ && c < pages_.head_dim; c += kThreads) {
      walk_.key_weights[c] = recent_query_weight(pages_, row_.row, tokens_, c);
    }
    if (thread() == 0) {
      walk_.place = row_.own_low;
      walk_.high = row_.counts.high;
      walk_.low = row_.counts.low;
      walk_.left_pages = left_pages;
      walk_.right_pages = right_pages;
      walk_.spare = plan_.spare;
      walk_.in_low = true;
      walk_.done = false;
    }
  }

  // ---- one thread alone

  TESSERA_DEVICE int32_t high_entry(int32_t place) const { return place - row_.first_score; }
  TESSERA_DEVICE TokenDecision high_decision(int32_t place) const {
    return decisions_[high_entry(place)];
  }
  TESSERA_DEVICE bool low_stays(int32_t place) const {
    return decisions_[pages_.row_token_scores - 1 - place] == TokenDecision::stay;
  }
  TESSERA_DEVICE static void add(Moves& moves, int32_t from, int32_t to) {
    moves.from[moves.count] = from;
    moves.to[moves.count] = to;
    ++moves.count;
  }

  TESSERA_DEVICE void fill() {
    walk_.demotions.count = 0;
    walk_.copies.count = 0;
    walk_.copies_low = walk_.in_low;
    if (walk_.in_low) {
      fill_low();
    } else {
      walk_.done = fill_high();
    }
  }

  TESSERA_DEVICE void fill_low() {
    for (; walk_.place < walk_.low && walk_.copies.count < kBatch; ++walk_.place) {
      if (low_stays(walk_.place)) {
        continue;
      }
      do {
        --walk_.low;
      } while (walk_.low > walk_.place && !low_stays(walk_.low));
      if (walk_.low > walk_.place) {
        add(walk_.copies, walk_.low, walk_.place);
      }
    }
    if (walk_.place >= walk_.low) {
      walk_.in_low = false;
      walk_.place = row_.own_high;
    }
  }

  // Returns: false if the batch is full, or if it must be executed before a page changes its tier.
  TESSERA_DEVICE bool fill_high() {
    while (walk_.place < walk_.high) {
      const TokenDecision decision = high_decision(walk_.place);
      if (decision == TokenDecision::stay) {
        ++walk_.place;
        continue;
      }
      if (walk_.demotions.count == kBatch || walk_.copies.count == kBatch) {
        return false;
      }
      const bool at_end = walk_.high - 1 == walk_.place;
      const TokenDecision last = high_decision(walk_.high - 1);
      if (!at_end && last != TokenDecision::stay) {  // remove the end first: it cannot fill a gap
        if (!leave_high(walk_.high - 1, last)) {
          return false;
        }
        --walk_.high;
        continue;
      }
      if (!leave_high(walk_.place, decision)) {
        return false;
      }
      if (--walk_.high > walk_.place) {
        add(walk_.copies, walk_.high, walk_.place);
      }
      ++walk_.place;
    }
    return true;
  }

  TESSERA_DEVICE bool leave_high(int32_t place, TokenDecision decision) {
    if (decision != TokenDecision::demote) {
      return true;
    }
    if (walk_.low == walk_.right_pages * low_layout_.capacity) {
      if (walk_.demotions.count > 0 || walk_.copies.count > 0) {
        return false;
      }
      add_low_page();
    }
    add(walk_.demotions, place, walk_.low++);
    return true;
  }

  // Takes a page from the high tier's end if one is empty by now, else the spare one.
  TESSERA_DEVICE void add_low_page() {
    int32_t page = walk_.spare;
    if (walk_.left_pages > div_ceil(walk_.high, high_layout_.capacity)) {
      page = left_[--walk_.left_pages];
      left_[walk_.left_pages] = kNoPage;
    } else {
      walk_.spare = kNoPage;
    }
    simt::check(page != kNoPage && walk_.left_pages + walk_.right_pages < pages_.row_pages);
    right_[-walk_.right_pages++] = page;
  }

  // ---- the whole block

  TESSERA_DEVICE TokenPlace high_place(int32_t place) const {
    return token_place(pages_.page(left_[place / high_layout_.capacity]),
                       place % high_layout_.capacity);
  }
  TESSERA_DEVICE TokenPlace low_place(int32_t place) const {
    return token_place(pages_.page(right_[-(place / low_layout_.capacity)]),
                       place % low_layout_.capacity);
  }

  // Tile by tile of the low tier. A warp takes the tokens whose bytes are not shared with other
  // warps' tokens.
  TESSERA_DEVICE void demote() {
    if (walk_.demotions.count == 0) {
      return;  // without a low tier, low_layout_ is the high tier's, which may be of floats
    }
    if (low_layout_.format.is_sparse()) {
      demote_sparse(as_kind<FormatKind::sparse>(low_layout_), walk_.demotions);
    } else {
      demote_codes(as_kind<FormatKind::codes>(low_layout_), walk_.demotions);
    }
  }
  TESSERA_DEVICE void demote_codes(const KvPageLayout& layout, const Moves& moves) {
    TESSERA_UNROLL_BY(1)
    for (int32_t i = 0; i < moves.count;) {
      const TokenPlace first = low_place(moves.to[i]);
      const int32_t end = i + KvPageLayout::kKeyTile - first.lane;
      if (first.lane == 0) {
        clear_tile(layout, first, block_team());
        sync_block();
      }
      TESSERA_UNROLL_BY(1)
      for (; i < moves.count && i < end; ++i) {
        const TokenPlace to = low_place(moves.to[i]);
        if (to.lane % kWarps == warp()) {
          const DecodedToken& token = decoded(moves.from[i]);
          put_codes(layout, to, token, warp_ranges(layout.format, layout.head_dim, token),
                    warp_team());
        }
      }
    }
  }
  // One warp for each token: sparse tokens share no bytes.
  TESSERA_DEVICE void demote_sparse(const KvPageLayout& layout, const Moves& moves) {
    TESSERA_UNROLL_BY(1)
    for (int32_t i = warp(); i < moves.count; i += kWarps) {
      put_sparse(layout, low_place(moves.to[i]), decoded(moves.from[i]),
                 weighs_keys_ ? walk_.key_weights : nullptr, walk_.sparse[warp()]);
    }
  }

  // Returns: a token of the high tier, until the warp's next call.
  TESSERA_DEVICE const DecodedToken& decoded(int32_t place) {
    DecodedToken& token = walk_.tokens[warp()];
    sync_warp();  // the previous token has been read
    decode(high_layout_, high_place(place), token);
    sync_warp();
    return token;
  }

  TESSERA_DEVICE void copy() {
    const Moves& moves = walk_.copies;
    const bool low = walk_.copies_low;
    TESSERA_UNROLL_BY(1)
    for (int32_t i = 0; i < moves.count; ++i) {
      const TokenPlace from = low ? low_place(moves.from[i]) : high_place(moves.from[i]);
      const TokenPlace to = low ? low_place(moves.to[i]) : high_place(moves.to[i]);
      copy_token(low ? low_layout_ : high_layout_, from, to);
    }
  }

  // Copies a token unchanged. A thread has the same bytes of every tile, so no barrier is needed
  // between tokens.
  TESSERA_DEVICE static void copy_token(const KvPageLayout& layout, const TokenPlace& from,
                                        const TokenPlace& to) {
    if (layout.format.is_sparse()) {
      copy_sparse(as_kind<FormatKind::sparse>(layout), from, to, block_team());
    } else if (layout.format.key_bits <= 8) {
      copy_codes(as_kind<FormatKind::codes>(layout), from, to);
    } else {
      const KvPageLayout floats = as_kind<FormatKind::floats>(layout);
      put_floats(floats, to, StoredToken(floats, from), block_team());
    }
  }
  TESSERA_DEVICE static void copy_codes(const KvPageLayout& layout, const TokenPlace& from,
                                        const TokenPlace& to) {
    const std::byte* from_keys = from.page + layout.keys_offset(from.tile);
    std::byte* to_keys = to.page + layout.keys_offset(to.tile);
    for (int64_t line = thread() * KvPageLayout::kLineBytes; line < layout.key_tile_bytes();
         line += kThreads * KvPageLayout::kLineBytes) {
      *reinterpret_cast<uint32_t*>(to_keys + line + 4 * to.lane) =
          *reinterpret_cast<const uint32_t*>(from_keys + line + 4 * from.lane);
    }
    const std::byte* from_values = from.page + layout.values_offset(from.tile);
    std::byte* to_values = to.page + layout.values_offset(to.tile);
    const int32_t bits = layout.format.value_bits;
    each_value_channel(layout.head_dim, block_team(), [&](int32_t c) {
      const KvPageLayout::CodePlace::Part at = layout.whole_value_place(from.lane, c);
      const uint32_t code =
          static_cast<uint32_t>(from_values[at.byte]) >> at.shift & ((1u << bits) - 1);
      put_code(to_values, layout.whole_value_place(to.lane, c), code, bits);
    });
    if (thread() == 0) {
      const auto half = [&](int64_t offset) { return half_at(from.page, offset, from.lane); };
      put_ranges(
          layout, to,
          {{half(layout.key_scales_offset(from.tile)), half(layout.key_zeros_offset(from.tile))},
           {half(layout.value_scales_offset(from.tile)),
            half(layout.value_zeros_offset(from.tile))}});
    }
  }

  TESSERA_DEVICE void move_token_scores() const {
    const bool of_demotion = thread() < kBatch;
    const int32_t i = thread() % kBatch;
    const Moves& moves = of_demotion ? walk_.demotions : walk_.copies;
    const bool from_low = !of_demotion && walk_.copies_low;
    const bool to_low = of_demotion || walk_.copies_low;
    KvTokenScore token_score;
    if (i < moves.count) {
      token_score = token_scores_[from_low ? pages_.row_token_scores - 1 - moves.from[i]
                                           : high_entry(moves.from[i])];
    }
    sync_block();
    if (i < moves.count) {
      token_scores_[to_low ? pages_.row_token_scores - 1 - moves.to[i] : high_entry(moves.to[i])] =
          token_score;
    }
  }

  const KvPagesView& pages_;
  const KvPageLayout& high_layout_;
  const KvPageLayout& low_layout_;
  const TokenRow row_;
  RowPlan& plan_;
  const TokenDecision* decisions_;
  int32_t* left_;   // page-table row, from its left end
  int32_t* right_;  // the same row from its right end, downwards
  KvTokenScore* token_scores_;
  int32_t tokens_;  // stored tokens of the sequence
  bool weighs_keys_;
  Walk& walk_;
};

// One block for each row.
TESSERA_KERNEL(kThreads) compact_kernel(CompressJob job) {
  RowCompaction(job, block_x(), shared<Walk>()).run();
}

// ---- pages for all rows, one block

// Takes a spare page for each row, if there is a low tier.
TESSERA_KERNEL(kPoolThreads) spare_kernel(CompressJob job) {
  BlockFreeList free_list(job.pool, shared<BlockFreeList::Memory>());
  if (thread() == 0) {
    *job.result = {.pages_freed = -job.pool.free_range->count};
  }
  sync_block();
  for (int32_t first = 0; first < job_rows(job); first += kPoolThreads) {
    const int32_t row = first + thread();
    const bool wants = row < job_rows(job) && job.sequence.policy.has_low_tier();
    free_list.take(wants ? 1 : 0);
    if (wants) {
      job.scratch.plans[row].spare = free_list.page(0);
    }
  }
  free_list.finish();
}

// Frees the entries beyond those in use at either end of each row, and the unused spare pages.
TESSERA_KERNEL(kPoolThreads) recycle_kernel(CompressJob job) {
  BlockFreeList::Memory& memory = shared<BlockFreeList::Memory>();
  BlockFreeList free_list(job.pool, memory);
  const KvPagesView& pages = job.pool.pages;
  int32_t demoted = 0;
  int32_t dropped = 0;
  int32_t low_pages = 0;
  for (int32_t first = 0; first < job_rows(job); first += kPoolThreads) {
    const int32_t index = first + thread();
    RowPlan* plan = index < job_rows(job) ? &job.scratch.plans[index] : nullptr;
    int32_t* table = nullptr;
    int32_t left = 0;  // the first entry to free
    int32_t right = 0;
    int32_t count = 0;  // entries to free
    if (plan != nullptr) {
      const int64_t row = pages.row_index(job.sequence.slot, 0, 0) + index;
      const KvRow counts = pages.rows[row];
      table = job.pool.tables + row * pages.row_pages;
      left = static_cast<int32_t>(
          div_ceil(counts.high, pages.layouts[job.sequence.tiers.high].capacity));
      right = static_cast<int32_t>(
          div_ceil(counts.low, pages.layouts[job.sequence.tiers.low].capacity));
      count = plan->left_pages - left + plan->right_pages - right;
      demoted += plan->demoted;
      dropped += plan->dropped;
      low_pages += right;
    }
    for (int32_t max = block_max(count, memory), i = 0; i < max; ++i) {
      int32_t* entry = nullptr;
      if (i < count) {
        const int32_t of_left = plan->left_pages - left;
        entry = table + (i < of_left ? left + i : pages.row_pages - 1 - (right + i - of_left));
      }
      free_list.release_page(entry);
    }
    free_list.release_page(plan != nullptr ? &plan->spare : nullptr);
  }
  free_list.finish();
  demoted = block_total(demoted, memory);
  dropped = block_total(dropped, memory);
  low_pages = block_total(low_pages, memory);
  if (thread() == 0) {
    job.result->pages_freed += job.pool.free_range->count;
    job.result->demoted = demoted;
    job.result->dropped = dropped;
    job.result->low_pages = low_pages;
  }
}

}  // namespace

void compact_rows(const CompressJob& job, Stream stream) {
  launch(stream, kOneBlock, spare_kernel, job);
  launch(stream, {.grid_x = job_rows(job), .threads = kThreads, .shared_bytes = sizeof(Walk)},
         compact_kernel, job);
  launch(stream, kOneBlock, recycle_kernel, job);
}

}  // namespace tessera::cuda
