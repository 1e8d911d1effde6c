#include "base/check.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/pages/pool_plan.h"
#include "kernels/cuda/pages/token_codec.h"

namespace tessera::cuda {
namespace {

using namespace simt;

struct Resizing {
  Plan<int32_t> released;
  Plan<KvPassed> passed;
  Plan<KvGrowth> grown;
  int32_t most_passed;  // upper bound of the pages that a row has passed
};

// Releases the pages that the slots have passed, one for each thread at a time.
TESSERA_DEVICE void pass(const KvPool& pool, const Resizing& changes, BlockFreeList& free_list) {
  const KvPagesView& pages = pool.pages;
  const int64_t places = changes.passed.count * slot_rows(pool) * changes.most_passed;
  for (int64_t first = 0; first < places; first += kPoolThreads) {
    const int64_t i = first + thread();
    int32_t* entry = nullptr;
    if (i < places) {
      const int64_t row = i / changes.most_passed;
      const int64_t head = row % slot_rows(pool);
      const KvPassed& of = changes.passed.data[row / slot_rows(pool)];
      const int32_t capacity = pages.layouts[of.tier].capacity;
      const int64_t place =
          passed_pages(pool.window_of(head), of.from, capacity) + i % changes.most_passed;
      if (place < passed_pages(pool.window_of(head), of.to, capacity)) {
        entry = pool.tables + (pages.row_index(of.slot, 0, 0) + head) * pages.row_pages + place;
        simt::check(*entry != kNoPage);
      }
    }
    free_list.release_page(entry);
  }
}

TESSERA_KERNEL(kPoolThreads) resize_kernel(KvPool pool, Resizing changes, int32_t* taken) {
  const Plan<int32_t>& released = changes.released;
  const Plan<KvGrowth>& grown = changes.grown;
  BlockFreeList free_list(pool, shared<BlockFreeList::Memory>());
  const KvPagesView& pages = pool.pages;
  const int64_t released_rows = released.count * slot_rows(pool);
  const int64_t entries = released_rows * pages.row_pages;
  for (int64_t first = 0; first < entries; first += kPoolThreads) {
    const int64_t i = first + thread();
    int32_t* entry = nullptr;
    if (i < entries) {
      const int64_t row =
          planned_row(pool, released, i / pages.row_pages, [](int32_t slot) { return slot; });
      entry = pool.tables + row * pages.row_pages + i % pages.row_pages;
      if (i % pages.row_pages == 0) {
        pages.rows[row] = {};
      }
    }
    free_list.release_page(entry);
  }
  pass(pool, changes, free_list);
  sync_block();
  const int64_t grown_rows = grown.count * slot_rows(pool);
  for (int64_t first = 0; first < grown_rows; first += kPoolThreads) {
    const int64_t i = first + thread();
    int32_t* table = nullptr;
    int64_t begin = 0;  // entries [begin, end) are those of the new tokens
    int64_t end = 0;
    int32_t missing = 0;
    if (i < grown_rows) {
      const KvGrowth& growth = grown.data[i / slot_rows(pool)];
      const int64_t row = planned_row(pool, grown, i, [](const KvGrowth& of) { return of.slot; });
      const int64_t capacity = pages.layouts[growth.tiers.high].capacity;
      const KvRow counts = pages.rows[row];
      table = pool.tables + row * pages.row_pages;
      begin = div_ceil(counts.high, capacity);
      end = div_ceil(int64_t{counts.high} + growth.tokens, capacity);
      simt::check(end + div_ceil(counts.low, pages.layouts[growth.tiers.low].capacity) <=
                  pages.row_pages);
      for (int64_t e = begin; e < end; ++e) {
        missing += table[e] == kNoPage ? 1 : 0;  // others have a page from an earlier growth
      }
    }
    free_list.take(missing);
    if (taken != nullptr && missing > 0) {
      atomic_add(&taken[i / slot_rows(pool)], missing);
    }
    for (int64_t e = begin, place = 0; e < end; ++e) {
      if (table[e] == kNoPage) {
        table[e] = free_list.page(static_cast<int32_t>(place++));
      }
    }
  }
  free_list.finish();
}

// ---- forks

// One row of a fork: high and low tokens of the copy, and number of full pages at each end.
struct ForkRow {
  int64_t from;
  int64_t to;
  KvRow counts;
  int32_t high_full;  // full pages
  int32_t low_full;
  bool high_partly;
  bool low_partly;
  // Of a row of a layer with a window: pages [passed, end) are copied. No page is shared then.
  int32_t passed;
  int32_t end;
};
TESSERA_DEVICE ForkRow fork_row(const KvPool& pool, const KvFork& fork, int64_t in_slot) {
  const KvPagesView& pages = pool.pages;
  ForkRow row;
  row.from = pages.row_index(fork.from, 0, 0) + in_slot;
  row.to = pages.row_index(fork.to, 0, 0) + in_slot;
  const int32_t window = pool.window_of(in_slot);
  row.counts = fork.counts_of(pages.rows[row.from], window);
  const int32_t high = pages.layouts[fork.tiers.high].capacity;
  const int32_t low = pages.layouts[fork.tiers.low].capacity;
  row.passed = passed_pages(window, fork.passed, high);
  row.end = window > 0 ? static_cast<int32_t>(div_ceil(row.counts.high, high)) : 0;
  if (window > 0) {
    row.high_full = row.low_full = 0;
    row.high_partly = row.low_partly = false;
    return row;
  }
  row.high_full = row.counts.high / high;
  row.low_full = row.counts.low / low;
  row.high_partly = row.counts.high % high != 0;
  row.low_partly = row.counts.low % low != 0;
  return row;
}

// Takes pages for the copies of partly filled pages.
TESSERA_KERNEL(kPoolThreads) fork_pages_kernel(KvPool pool, Plan<KvFork> forks) {
  BlockFreeList free_list(pool, shared<BlockFreeList::Memory>());
  const KvPagesView& pages = pool.pages;
  const int64_t rows = forks.count * slot_rows(pool);
  for (int64_t first = 0; first < rows; first += kPoolThreads) {
    const int64_t i = first + thread();
    ForkRow row = {};
    if (i < rows) {
      row = fork_row(pool, forks.data[i / slot_rows(pool)], i % slot_rows(pool));
      const int32_t* table = pages.table(row.to);
      simt::check(table[0] == kNoPage && table[pages.row_pages - 1] == kNoPage);
    }
    free_list.take((row.high_partly ? 1 : 0) + (row.low_partly ? 1 : 0) + row.end - row.passed);
    int32_t* table = pool.tables + row.to * pages.row_pages;
    for (int32_t place = row.passed; place < row.end; ++place) {
      table[place] = free_list.page(place - row.passed);
    }
    if (row.high_partly) {
      table[row.high_full] = free_list.page(0);
    }
    if (row.low_partly) {
      table[pages.row_pages - 1 - row.low_full] = free_list.page(row.high_partly ? 1 : 0);
    }
  }
  free_list.finish();
}

TESSERA_DEVICE void copy_token_scores(const KvTokenScore* from, KvTokenScore* to, int32_t count) {
  for (int32_t i = thread(); i < count; i += threads()) {
    to[i] = from[i];
  }
}

constexpr int32_t kCopyThreads = 256;

// One block for each fork and row.
TESSERA_KERNEL(kCopyThreads) fork_rows_kernel(KvPool pool, const KvFork* forks) {
  const KvPagesView& pages = pool.pages;
  const KvFork fork = forks[block_x()];
  const ForkRow row = fork_row(pool, fork, block_y());
  const int32_t* from = pages.table(row.from);
  int32_t* to = pool.tables + row.to * pages.row_pages;
  const int32_t last = pages.row_pages - 1;
  for (int32_t i = thread(); i < row.high_full + row.low_full; i += threads()) {
    const int32_t entry = i < row.high_full ? i : last - (i - row.high_full);
    share_page(pool, from[entry]);
    to[entry] = from[entry];
  }
  for (int32_t i = row.passed; i < row.end; ++i) {
    simt::check(from[i] != kNoPage);
    copy_bytes(pages.page(from[i]), pages.page(to[i]), pages.page_bytes, block_team());
  }
  if (row.high_partly) {
    copy_bytes(pages.page(from[row.high_full]), pages.page(to[row.high_full]), pages.page_bytes,
               block_team());
  }
  if (row.low_partly) {
    copy_bytes(pages.page(from[last - row.low_full]), pages.page(to[last - row.low_full]),
               pages.page_bytes, block_team());
  }
  copy_bytes(pages.residual(row.from), pages.residual(row.to), pages.residual_layout.page_bytes,
             block_team());
  if (pages.scores_all_tokens()) {
    const int32_t first_low = pages.row_token_scores - row.counts.low;
    const int32_t left = row.counts.high + kKvGroup;
    copy_token_scores(pages.token_score_row(row.from), pages.token_score_row(row.to),
                      left < first_low ? left : first_low);
    copy_token_scores(pages.token_score_row(row.from) + first_low,
                      pages.token_score_row(row.to) + first_low, row.counts.low);
  }
  if (thread() == 0) {
    pages.rows[row.to] = row.counts;
  }
}

// ---- prefix blocks

constexpr int32_t kPrefixBlockThreads = 64;

// One thread block for each share and row.
TESSERA_KERNEL(kPrefixBlockThreads) share_kernel(KvPool pool, const KvShare* shares) {
  const KvPagesView& pages = pool.pages;
  const KvShare share = shares[block_x()];
  const int64_t row = pages.row_index(share.slot, 0, 0) + block_y();
  if (const int32_t window = pool.window_of(block_y()); window > 0) {
    const WindowedPages of = WindowedPages::of(
        window, share.first + share.low, share.tokens_in(pool), pages.layouts[share.tier].capacity);
    int32_t* to = pool.prefix_block_table(share.handle, block_y()) - of.begin;
    for (int32_t i = of.kept + thread(); share.windows && i < of.end; i += threads()) {
      const int32_t id = pages.table(row)[i];
      simt::check(to[i] == kNoPage && id != kNoPage);
      share_page(pool, id);
      to[i] = id;
    }
    return;
  }
  const int32_t high = pages.rows[row].high;
  const int32_t capacity = pages.layouts[share.tier].capacity;
  const int32_t first_token = share.first - lost_in_sections(share.closed, high);
  int32_t first = first_token / capacity;
  int32_t count = pool.prefix_block_pages_of(share.tier, share.short_tokens);
  if (share.section) {
    first = first_page_of_section(pages, share, row, high);
    count = high / capacity - first;
    simt::check(high % capacity == 0 && count <= pool.prefix_block_pages);
  } else {
    simt::check(first_token >= 0 && first_token % capacity == 0 &&
                high >= first_token + share.tokens_in(pool));
  }
  const int32_t* from = pages.table(row) + first;
  int32_t* to = pool.prefix_block_table(share.handle, block_y());
  for (int32_t i = thread(); i < count; i += threads()) {
    simt::check(to[i] == kNoPage);
    share_page(pool, from[i]);
    to[i] = from[i];
  }
}

struct Attachment {
  int32_t slot;
  KvTiers tiers;
  int32_t passed;
};

// Fills a row of a layer with a window.
TESSERA_DEVICE void attach_windowed(const KvPool& pool, const Attachment& to,
                                    const Plan<PrefixBlock>& prefix_blocks) {
  const KvPagesView& pages = pool.pages;
  const int64_t row = pages.row_index(to.slot, 0, 0) + block_y();
  const int32_t capacity = pages.layouts[to.tiers.high].capacity;
  int32_t* table = pool.tables + row * pages.row_pages;
  int32_t tokens = 0;
  for (int32_t u = 0; u < prefix_blocks.count; ++u) {
    tokens += prefix_blocks.data[u].tokens_in(pool);
  }
  simt::check(tokens / capacity <= pages.row_pages);
  const int32_t passed = passed_pages(pool.window_of(block_y()), to.passed, capacity);
  int32_t position = 0;
  for (int32_t u = 0; u < prefix_blocks.count; ++u) {
    const PrefixBlock& prefix_block = prefix_blocks.data[u];
    const int32_t first = position / capacity;
    position += prefix_block.tokens_in(pool);
    const int32_t* from = pool.prefix_block_table(prefix_block.handle, block_y());
    for (int32_t i = (first > passed ? first : passed) + thread(); i < position / capacity;
         i += threads()) {
      const int32_t id = from[i - first];
      simt::check(id != kNoPage && table[i] == kNoPage);
      share_page(pool, id);
      table[i] = id;
    }
  }
  if (thread() == 0) {
    pages.rows[row].high = tokens;
  }
}

// One thread block for each row of the slot.
TESSERA_KERNEL(kPrefixBlockThreads)
attach_kernel(KvPool pool, Attachment to, Plan<PrefixBlock> prefix_blocks) {
  if (pool.window_of(block_y()) > 0) {
    attach_windowed(pool, to, prefix_blocks);
    return;
  }
  const KvPagesView& pages = pool.pages;
  const int64_t row = pages.row_index(to.slot, 0, 0) + block_y();
  int32_t* table = pool.tables + row * pages.row_pages;
  KvRow counts = pages.rows[row];
  simt::check(counts.high == 0 && counts.low == 0 && table[0] == kNoPage &&
              table[pages.row_pages - 1] == kNoPage);
  sync_block();      // every thread has checked that the row is empty
  int32_t left = 0;  // pages
  int32_t right = 0;
  int32_t position = 0;
  for (int32_t u = 0; u < prefix_blocks.count; ++u) {
    const PrefixBlock prefix_block = prefix_blocks.data[u];
    const bool high = prefix_block.tier == to.tiers.high;
    const int32_t* from = pool.prefix_block_table(prefix_block.handle, block_y());
    const int32_t count = prefix_block.pages_of(pool, from);
    const int32_t tokens = count * pages.layouts[prefix_block.tier].capacity;
    simt::check(left + right + count <= pages.row_pages);
    for (int32_t i = thread(); i < count; i += threads()) {
      share_page(pool, from[i]);
      table[high ? left + i : pages.row_pages - 1 - (right + i)] = from[i];
    }
    (high ? left : right) += count;
    int32_t& stored = high ? counts.high : counts.low;
    for (int32_t i = thread(); pages.scores_all_tokens() && i < tokens; i += threads()) {
      const int32_t token_score = high ? stored + i : pages.row_token_scores - 1 - (stored + i);
      pages.token_score_row(row)[token_score] = {0, position + i};
    }
    stored += tokens;
    position += prefix_block.tokens_in(pool);
  }
  if (thread() == 0) {
    pages.rows[row] = counts;
  }
}

// One thread block for each row of the slot. The copies take the first free pages, in order of the
// rows; own_pages_kernel takes these off the free list.
TESSERA_KERNEL(kCopyThreads) own_rows_kernel(KvOwnArgs args) {
  const KvPool& pool = args.pool;
  const KvPagesView& pages = pool.pages;
  const int64_t row = pages.row_index(args.slot, 0, 0) + block_y();
  const int32_t capacity = pages.layouts[args.tier].capacity;
  const int32_t high = pages.rows[row].high;
  const int32_t count = args.row_pages();
  const KvFreeRange range = *pool.free_range;
  simt::check(high % capacity == 0 && count <= high / capacity &&
              slot_rows(pool) * count <= range.count);
  int32_t* const table = pool.tables + row * pages.row_pages + (high / capacity - count);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t own =
        pool.free_list[(range.head + int64_t{block_y()} * count + i) % pool.page_count];
    const int32_t shared = table[i];
    copy_bytes(pages.page(shared), pages.page(own), pages.page_bytes, block_team());
    sync_block();  // every thread has read the table
    if (thread() == 0) {
      simt::check(simt::subtract_owner(&pool.owners[shared]) > 1);
      pool.owners[own] = 1;
      table[i] = own;
    }
  }
}

TESSERA_KERNEL(kWarp) own_pages_kernel(KvPool pool, int64_t taken) {
  if (thread() == 0) {
    KvFreeRange& range = *pool.free_range;
    range = {(range.head + taken) % pool.page_count, range.count - taken};
  }
}

TESSERA_KERNEL(kPoolThreads)
evict_kernel(KvPool pool, Plan<int32_t> handles, bool windows_only) {
  BlockFreeList free_list(pool, shared<BlockFreeList::Memory>());
  const int64_t of_prefix_block = slot_rows(pool) * pool.prefix_block_pages;
  const int64_t entries = handles.count * of_prefix_block;
  for (int64_t first = 0; first < entries; first += kPoolThreads) {
    const int64_t i = first + thread();
    const int64_t head = i % of_prefix_block / pool.prefix_block_pages;
    const bool evicted = i < entries && (!windows_only || pool.window_of(head) > 0);
    free_list.release_page(evicted ? pool.prefix_block_table(handles.data[i / of_prefix_block], 0) +
                                         i % of_prefix_block
                                   : nullptr);
  }
  free_list.finish();
}

LaunchShape block_per_row(const KvPool& pool, size_t of_plan, int32_t threads) {
  return {.grid_x = static_cast<int32_t>(of_plan),
          .grid_y = pool.pages.layers * pool.pages.kv_heads,
          .threads = threads};
}

}  // namespace

void kv_resize(const KvResizeArgs& args, Stream stream) {
  for (const int32_t slot : args.released) {
    TESSERA_CHECK(slot >= 0 && slot < args.pool.slots, "kv_resize: no such slot");
  }
  for (const KvGrowth& growth : args.grown) {
    TESSERA_CHECK(growth.slot >= 0 && growth.slot < args.pool.slots, "kv_resize: no such slot");
    TESSERA_CHECK(growth.tokens >= 0, "kv_resize: a negative growth");
    TESSERA_CHECK(args.pool.pages.layouts[growth.tiers.high].capacity > 0 &&
                      args.pool.pages.layouts[growth.tiers.low].capacity > 0,
                  "kv_resize: no such tier");
  }
  TESSERA_CHECK(args.taken.empty() || args.taken.size() == args.grown.size(),
                "kv_resize: `taken` needs one entry for each growth");
  int32_t most_passed = 0;
  for (const KvPassed& passed : args.passed) {
    TESSERA_CHECK(passed.slot >= 0 && passed.slot < args.pool.slots, "kv_resize: no such slot");
    const int32_t capacity = args.pool.pages.layouts[passed.tier].capacity;
    TESSERA_CHECK(capacity > 0, "kv_resize: no such tier");
    // A window moves by whole groups, which begin and end within pages.
    const int64_t most = div_ceil(round_up(passed.to - passed.from, kKvGroup) + kKvGroup, capacity);
    most_passed = most_passed < most + 1 ? static_cast<int32_t>(most) + 1 : most_passed;
  }
  if (!args.released.empty() || !args.passed.empty() || !args.grown.empty()) {
    const Resizing changes{plan_of(args.released, stream), plan_of(args.passed, stream),
                           plan_of(args.grown, stream), most_passed};
    launch(stream, kOneBlock, resize_kernel, args.pool, changes, collect(args.taken, stream));
  }
}

void kv_fork(const KvForkArgs& args, Stream stream) {
  for (const KvFork& fork : args.forks) {
    TESSERA_CHECK(fork.from >= 0 && fork.from < args.pool.slots && fork.to >= 0 &&
                      fork.to < args.pool.slots && fork.from != fork.to,
                  "kv_fork: no such slots");
    for (const KvFork& other : args.forks) {
      TESSERA_CHECK(fork.from != other.to, "kv_fork: forks a target of the same call");
    }
  }
  if (args.forks.empty()) {
    return;
  }
  const Plan<KvFork> forks = plan_of(args.forks, stream);
  launch(stream, kOneBlock, fork_pages_kernel, args.pool, forks);
  launch(stream, block_per_row(args.pool, args.forks.size(), kCopyThreads), fork_rows_kernel,
         args.pool, forks.data);
}

void kv_share(const KvShareArgs& args, Stream stream) {
  for (const KvShare& share : args.shares) {
    check_share(args.pool, share);
  }
  launch(stream, block_per_row(args.pool, args.shares.size(), kPrefixBlockThreads), share_kernel,
         args.pool, mirror(args.shares, stream));
}

void kv_attach(const KvAttachArgs& args, Stream stream) {
  for (const KvAttachment& one : args.attachments) {
    TESSERA_CHECK(one.slot >= 0 && one.slot < args.pool.slots, "kv_attach: no such slot");
    for (const PrefixBlock& prefix_block : one.prefix_blocks) {
      check_prefix_block(args.pool, prefix_block.handle, prefix_block.tier);
      TESSERA_CHECK(prefix_block.tier == one.tiers.high || prefix_block.tier == one.tiers.low,
                    "kv_attach: a prefix block of neither tier");
    }
    launch(stream, block_per_row(args.pool, 1, kPrefixBlockThreads), attach_kernel, args.pool,
           Attachment{one.slot, one.tiers, one.passed}, plan_of(one.prefix_blocks, stream));
  }
}

void kv_own(const KvOwnArgs& args, Stream stream) {
  TESSERA_CHECK(args.slot >= 0 && args.slot < args.pool.slots, "kv_own: no such slot");
  TESSERA_CHECK(args.tokens % args.pool.pages.layouts[args.tier].capacity == 0,
                "kv_own: tokens that are not in full pages");
  if (args.tokens > 0) {
    launch(stream, block_per_row(args.pool, 1, kCopyThreads), own_rows_kernel, args);
    launch(stream, LaunchShape{}, own_pages_kernel, args.pool,
           slot_rows(args.pool) * args.row_pages());
  }
}

void kv_evict(const KvEvictArgs& args, Stream stream) {
  for (const int32_t handle : args.handles) {
    TESSERA_CHECK(handle >= 0 && handle < args.pool.prefix_blocks,
                  "kv_evict: no such prefix block");
  }
  if (!args.handles.empty()) {
    launch(stream, kOneBlock, evict_kernel, args.pool, plan_of(args.handles, stream),
           args.windows_only);
  }
}

}  // namespace tessera::cuda
