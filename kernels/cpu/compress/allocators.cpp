#include "kernels/cpu/compress/allocators.h"

#include "kernels/check.h"
#include "kernels/cpu/compress/key_cuts.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

// The tokens of one layer's rows, for an allocator's measure (kernels/kv/kv_allocators.h).
class LayerTokens {
 public:
  // keys: scratch of one thread.
  LayerTokens(const AllocatorInput& input, int64_t layer, std::span<TokenKey> keys)
      : input_(input), first_(layer * input.pool.pages.kv_heads), keys_(keys) {}

  int32_t heads() const { return input_.pool.pages.kv_heads; }
  int32_t row_budget() const { return input_.row_budget; }
  int32_t stored(int32_t head) const {
    const TokenRow row = tokens(head);
    return row.counts.high + row.counts.low + row.open;
  }
  int32_t own(int32_t head) const {
    int32_t own = 0;
    tokens(head).for_each_own([&](const KvTokenScore&, TokenAge) { ++own; });
    return own;
  }
  int32_t own_at_least(int32_t head, TokenKey cut) const {
    int32_t own = 0;
    each_key(head, [&](TokenKey key) { own += key >= cut ? 1 : 0; });
    return own;
  }
  double mass(int32_t head) const {
    const TokenRow row = tokens(head);
    double sum = 0;
    row.for_each_stored(
        [&](const KvTokenScore& token_score) { sum += input_.significance.of(token_score); });
    return sum;
  }
  TokenKey cut_best(int32_t best) const {
    size_t count = 0;
    for (int32_t head = 0; head < heads(); ++head) {
      each_key(head, [&](TokenKey key) { keys_[count++] = key; });
    }
    return cut_above_worst(keys_.first(count), best);
  }
  TokenKey cut_mass(int32_t head, double limit) const {
    size_t count = 0;
    each_key(head, [&](TokenKey key) { keys_[count++] = key; });
    return cut_below_mass(keys_.first(count), limit);
  }
  void set(int32_t head, double measure) const {
    input_.measures[static_cast<size_t>(first_ + head)] = measure;
  }

 private:
  TokenRow tokens(int32_t head) const {
    return {input_.pool, input_.sequence, input_.first_row() + first_ + head};
  }
  template <class Visit>
  void each_key(int32_t head, Visit&& visit) const {
    tokens(head).for_each_own([&](const KvTokenScore& token_score, TokenAge) {
      visit(input_.significance.key(token_score));
    });
  }

  const AllocatorInput& input_;
  const int64_t first_;  // row of the layer's first head, counted from the sequence's first
  const std::span<TokenKey> keys_;
};

template <class Allocator>
void measure(const AllocatorInput& input) {
  ThreadPool& threads = ThreadPool::of(input.stream);
  const size_t thread_keys = input.keys.size() / static_cast<size_t>(threads.threads());
  threads.parallel_for(input.pool.pages.layers, 1, [&](int64_t layer, int64_t, int thread) {
    Allocator::measure(LayerTokens(
        input, layer, input.keys.subspan(static_cast<size_t>(thread) * thread_keys, thread_keys)));
  });
}

template <class Allocator>
void allocate_rows(const AllocatorInput& input) {
  constexpr bool kMeasures = Allocator::kReads == AllocatorReads::scores;
  constexpr bool kProfiled = Allocator::kReads == AllocatorReads::profile;
  TESSERA_CHECK(!kProfiled || input.pool.head_profiles != nullptr, "a model without a profile");
  const KvPagesView& pages = input.pool.pages;
  const AllocatorShape shape{input.sequence.policy, pages.layers, pages.kv_heads,
                             input.sequence.tokens, input.row_budget};
  double sum = 0;
  if constexpr (kMeasures) {
    measure<Allocator>(input);
    for (const double one : input.measures) {
      sum += one;
    }
  }
  for (size_t row = 0; row < input.budgets.size(); ++row) {
    const int32_t layer = static_cast<int32_t>(row) / pages.kv_heads;
    input.budgets[row] = budget_of_row<Allocator>(
        shape, {.layer = layer,
                .measure = kMeasures ? input.measures[row] : 0.0,
                .sum = sum,
                .profile = kProfiled ? input.pool.head_profiles[row] : HeadProfile()});
  }
}

}  // namespace

void allocate(const AllocatorInput& input) {
  with_allocator(input.sequence.policy.allocator, [&](auto allocator) {
    using Allocator = decltype(allocator);
    if constexpr (Allocator::kReads == AllocatorReads::pages) {
      allocate_pages(input);
    } else {
      allocate_rows<Allocator>(input);
    }
  });
}

}  // namespace tessera
