#include <algorithm>

#include "kernels/cpu/compress/allocators.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

// Writes the keys of the row's tokens that a rule may touch. Returns: their number.
size_t collect(const AllocatorInput& input, const TokenRow& row, std::span<TokenKey> keys) {
  size_t count = 0;
  row.for_each_own([&](const KvTokenScore& token_score, TokenAge) {
    keys[count++] = input.significance.key(token_score);
  });
  return count;
}

// For each page that a row could lose: the best key that is lost with it. A row loses its worst
// tokens, first as many as its last page holds, then whole pages. Entries beyond the pages that it
// can lose are kAboveAllKeys.
void rank_pages(const AllocatorInput& input, int64_t row, std::span<TokenKey> keys,
                std::span<TokenKey> page_keys) {
  const TokenRow tokens(input.pool, input.sequence, row);
  const auto own = keys.first(collect(input, tokens, keys));
  std::sort(own.begin(), own.end());
  std::fill(page_keys.begin(), page_keys.end(), kAboveAllKeys);
  if (input.pool.window_of(row - input.first_row()) > 0) return;
  const int32_t capacity = input.pool.pages.layouts[input.sequence.tiers.high].capacity;
  size_t evicted = static_cast<size_t>((tokens.counts.high + capacity - 1) % capacity) + 1;
  for (TokenKey& page_key : page_keys) {
    if (tokens.counts.high == 0 || evicted > own.size()) {
      return;
    }
    page_key = own[evicted - 1];
    evicted += static_cast<size_t>(capacity);
  }
}

// Selects pages to evict: keys below the cutoff, and the first `ties` keys equal to it.
struct PageCutoff {
  TokenKey key = kLowestKey;
  int64_t ties = 0;

  bool evicts(TokenKey page) {
    if (page == key && page != kAboveAllKeys && ties > 0) {
      --ties;
      return true;
    }
    return page < key;
  }
};

// `scratch`: as many keys as `pages`. The order of `pages` stays.
PageCutoff cut_pages(std::span<const TokenKey> pages, std::span<TokenKey> scratch, int64_t evict) {
  if (evict <= 0) {
    return {};
  }
  std::copy(pages.begin(), pages.end(), scratch.begin());
  const int64_t last = std::min(evict, std::ssize(pages)) - 1;
  std::nth_element(scratch.begin(), scratch.begin() + last, scratch.begin() + std::ssize(pages));
  const TokenKey cut = scratch[static_cast<size_t>(last)];
  const int64_t below =
      std::count_if(pages.begin(), pages.end(), [cut](TokenKey key) { return key < cut; });
  return {cut, evict - below};
}

}  // namespace

void allocate_pages(const AllocatorInput& input) {
  const KvPagesView& pages = input.pool.pages;
  const size_t rows = input.budgets.size();
  const auto entries = static_cast<size_t>(pages.row_pages);
  const int64_t capacity = input.pool.pages.layouts[input.sequence.tiers.high].capacity;
  const int64_t open = input.sequence.tokens % kKvGroup;
  const std::span<TokenKey> of_rows = input.page_keys.first(rows * entries);
  ThreadPool& threads = ThreadPool::of(input.stream);
  const size_t thread_keys = input.keys.size() / static_cast<size_t>(threads.threads());
  threads.parallel_for(std::ssize(input.budgets), 1, [&](int64_t row, int64_t, int thread) {
    rank_pages(input, input.first_row() + row,
               input.keys.subspan(static_cast<size_t>(thread) * thread_keys, thread_keys),
               of_rows.subspan(static_cast<size_t>(row) * entries, entries));
  });
  const KvRow* counts = pages.rows + input.first_row();
  int64_t held = 0;
  int64_t whole_rows = 0;  // of layers without a window
  for (size_t row = 0; row < rows; ++row) {
    if (input.pool.window_of(static_cast<int64_t>(row)) > 0) continue;
    held += div_ceil(counts[row].high, capacity);
    ++whole_rows;
  }
  const int64_t allowed = whole_rows * (std::max<int64_t>(input.row_budget - open, 0) / capacity);
  PageCutoff cut = cut_pages(of_rows, input.page_keys.subspan(of_rows.size()), held - allowed);
  for (size_t row = 0; row < rows; ++row) {
    int64_t gone = 0;
    for (const TokenKey key : of_rows.subspan(row * entries, entries)) {
      gone += cut.evicts(key) ? 1 : 0;
    }
    const int64_t left = (div_ceil(counts[row].high, capacity) - gone) * capacity;
    input.budgets[row] = static_cast<int32_t>((gone > 0 ? left : counts[row].high) + open);
  }
}

}  // namespace tessera
