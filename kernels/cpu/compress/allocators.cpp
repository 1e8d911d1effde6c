#include "kernels/cpu/compress/allocators.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {
namespace {

int32_t capacity_of(const KvPool& pool, uint8_t tier) {
  return pool.pages.layouts[tier].capacity;
}

// Rows of a sequence are adjacent: layer by layer, head by head.
int64_t first_row(const AllocatorInput& input) {
  return input.pool.pages.row_index(input.sequence.slot, 0, 0);
}

int32_t clamp_tokens(double tokens, int32_t max) {
  return static_cast<int32_t>(std::clamp(tokens, 0.0, static_cast<double>(max)));
}

// Writes the keys of the row's tokens that a rule may touch. Returns: their number.
size_t collect(const AllocatorInput& input, const TokenRow& row, std::span<TokenKey> keys) {
  size_t count = 0;
  row.for_each_own([&](const KvTokenScore& token_score, TokenAge) {
    keys[count++] = input.significance.key(token_score);
  });
  return count;
}

int64_t stored_tokens(const TokenRow& row) {
  return int64_t{row.counts.high} + row.counts.low + row.open;
}

}  // namespace

void allocate_uniform(const AllocatorInput& input) {
  std::fill(input.budgets.begin(), input.budgets.end(), input.row_budget);
}

void allocate_pyramid(const AllocatorInput& input) {
  const int32_t layers = input.pool.pages.layers;
  const int32_t heads = input.pool.pages.kv_heads;
  const int32_t max = input.sequence.tokens;
  const double mean = input.row_budget;
  const double first =
      std::min<double>(2 * mean - mean / input.sequence.policy.pyramid_steepness, max);
  const double last = 2 * mean - first;
  for (int32_t layer = 0; layer < layers; ++layer) {
    const double depth = layers > 1 ? static_cast<double>(layer) / (layers - 1) : 0.5;
    const int32_t tokens = clamp_tokens(std::floor(first + depth * (last - first)), max);
    std::fill_n(input.budgets.begin() + int64_t{layer} * heads, heads, tokens);
  }
}

void allocate_heads(const AllocatorInput& input) {
  const int64_t heads = input.pool.pages.kv_heads;
  ThreadPool& threads = ThreadPool::of(input.stream);
  const size_t thread_keys = input.keys.size() / static_cast<size_t>(threads.threads());
  threads.parallel_for(input.pool.pages.layers, 1, [&](int64_t layer, int64_t, int thread) {
    const auto keys = input.keys.subspan(static_cast<size_t>(thread) * thread_keys, thread_keys);
    const int64_t row = first_row(input) + layer * heads;
    size_t count = 0;
    int64_t kept_anyway = 0;
    for (int64_t head = 0; head < heads; ++head) {
      const TokenRow tokens(input.pool, input.sequence, row + head);
      const size_t own = collect(input, tokens, keys.subspan(count));
      kept_anyway += stored_tokens(tokens) - static_cast<int64_t>(own);
      count += own;
    }
    const int64_t wins =
        std::clamp<int64_t>(heads * input.row_budget - kept_anyway, 0, static_cast<int64_t>(count));
    TokenKey cut = kAboveAllKeys;  // keys at or above it win
    if (wins > 0) {
      const auto last = keys.begin() + static_cast<int64_t>(count) - wins;
      std::nth_element(keys.begin(), last, keys.begin() + static_cast<int64_t>(count));
      cut = *last;
    }
    for (int64_t head = 0; head < heads; ++head) {
      const TokenRow tokens(input.pool, input.sequence, row + head);
      int64_t own = 0;
      int64_t won = 0;
      tokens.for_each_own([&](const KvTokenScore& token_score, TokenAge) {
        ++own;
        won += input.significance.key(token_score) >= cut ? 1 : 0;
      });
      const double floor = input.sequence.policy.head_floor;
      const double adaptive = static_cast<double>(stored_tokens(tokens) - own + won);
      input.budgets[static_cast<size_t>(layer * heads + head)] = clamp_tokens(
          std::floor(floor * input.row_budget + (1 - floor) * adaptive), input.sequence.tokens);
    }
  });
}

namespace {

// For each page that a row could lose: the best key that is lost with it. A row loses its worst
// tokens, first as many as its last page holds, then whole pages. Entries beyond the pages that it
// can lose are kAboveAllKeys.
void rank_pages(const AllocatorInput& input, int64_t row, std::span<TokenKey> keys,
                std::span<TokenKey> page_keys) {
  const TokenRow tokens(input.pool, input.sequence, row);
  const auto own = keys.first(collect(input, tokens, keys));
  std::sort(own.begin(), own.end());
  std::fill(page_keys.begin(), page_keys.end(), kAboveAllKeys);
  const int32_t capacity = capacity_of(input.pool, input.sequence.tiers.high);
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
  const int64_t capacity = capacity_of(input.pool, input.sequence.tiers.high);
  const int64_t open = input.sequence.tokens % kKvGroup;
  const std::span<TokenKey> of_rows = input.page_keys.first(rows * entries);
  ThreadPool& threads = ThreadPool::of(input.stream);
  const size_t thread_keys = input.keys.size() / static_cast<size_t>(threads.threads());
  threads.parallel_for(std::ssize(input.budgets), 1, [&](int64_t row, int64_t, int thread) {
    rank_pages(input, first_row(input) + row,
               input.keys.subspan(static_cast<size_t>(thread) * thread_keys, thread_keys),
               of_rows.subspan(static_cast<size_t>(row) * entries, entries));
  });
  const KvRow* counts = pages.rows + first_row(input);
  int64_t held = 0;
  for (size_t row = 0; row < rows; ++row) {
    held += div_ceil(counts[row].high, capacity);
  }
  const int64_t allowed =
      static_cast<int64_t>(rows) * (std::max<int64_t>(input.row_budget - open, 0) / capacity);
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

void allocate(const AllocatorInput& input) {
  using Allocate = void(const AllocatorInput&);
  constexpr Allocate* kAllocators[] = {allocate_uniform, allocate_pyramid, allocate_heads,
                                       allocate_pages};
  kAllocators[static_cast<size_t>(input.sequence.policy.allocator)](input);
}

}  // namespace tessera
