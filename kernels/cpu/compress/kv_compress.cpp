#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/cpu/compress/allocators.h"
#include "kernels/cpu/compress/compaction.h"
#include "kernels/cpu/compress/compress_ops.h"
#include "kernels/cpu/compress/rules.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 64;

// Parts of the scratch memory. One sequence uses it at a time.
struct Scratch {
  Scratch(const KvPagesView& pages, int threads, std::byte* memory) {
    const int64_t rows = int64_t{pages.layers} * pages.kv_heads;
    thread_keys = static_cast<size_t>(int64_t{pages.kv_heads} * pages.row_token_scores);
    row_decisions = static_cast<size_t>(pages.row_token_scores);
    changes = cut<RowChange>(memory, rows);
    decisions = cut<TokenDecision>(memory, rows * pages.row_token_scores);
    budgets = cut<int32_t>(memory, rows);
    keys = cut<TokenKey>(memory, static_cast<int64_t>(thread_keys) * threads);
    page_keys = cut<TokenKey>(memory, 2 * rows * pages.row_pages);
  }

  std::span<TokenKey> keys_of(int thread) const {
    return keys.subspan(static_cast<size_t>(thread) * thread_keys, thread_keys);
  }

  std::span<TokenDecision> decisions_of(int64_t row) const {
    return decisions.subspan(static_cast<size_t>(row) * row_decisions, row_decisions);
  }

  std::span<RowChange> changes;        // [rows]
  std::span<TokenDecision> decisions;  // [rows, row_token_scores]
  std::span<int32_t> budgets;          // [rows]
  std::span<TokenKey> keys;            // [threads, tokens of a layer's rows]
  std::span<TokenKey> page_keys;       // [2, rows, row_pages]
  size_t thread_keys = 0;
  size_t row_decisions = 0;
  int64_t bytes = 0;

 private:
  template <class T>
  std::span<T> cut(std::byte* memory, int64_t count) {
    T* data = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + bytes);
    bytes += round_up(count * int64_t{sizeof(T)}, kAlignment);
    return {data, static_cast<size_t>(count)};
  }
};

class Compressor {
 public:
  Compressor(const TokenOps& ops, const KvPool& pool, const KvCompression& sequence,
             const Scratch& scratch, Stream stream)
      : ops_(ops),
        pool_(pool),
        sequence_(sequence),
        significance_(sequence),
        scratch_(scratch),
        stream_(stream),
        first_row_(pool.pages.row_index(sequence.slot, 0, 0)) {}

  KvCompressed run() {
    forget();
    if (weighs_output(sequence_.policy.scorer)) {
      each_row([&](int64_t row, int) { weigh_by_values(row); });
    }
    if (sequence_.pool_scores && sequence_.policy.score_pool > 1) {
      each_row([&](int64_t row, int) { pool_scores(row); });
    }
    if (divides_budget(sequence_.policy.rule())) {
      allocate({.pool = pool_,
                .sequence = sequence_,
                .significance = significance_,
                .row_budget = row_budget(pool_, sequence_),
                .keys = scratch_.keys,
                .page_keys = scratch_.page_keys,
                .budgets = scratch_.budgets,
                .stream = stream_});
    }
    const FreeList free_list(pool_);
    const int64_t free_before = pool_.free_range->count;
    for (size_t row = 0; row < scratch_.changes.size(); ++row) {
      const bool takes = sequence_.policy.has_low_tier() && is_whole(static_cast<int64_t>(row));
      scratch_.changes[row] = {.spare = takes ? free_list.take() : kNoPage};
    }
    each_row([&](int64_t row, int thread) { change(row, thread); });
    KvCompressed result;
    for (size_t row = 0; row < scratch_.changes.size(); ++row) {
      const RowChange& change = scratch_.changes[row];
      if (!is_whole(static_cast<int64_t>(row))) {
        recycle_replay(free_list, first_row_ + static_cast<int64_t>(row));
        continue;
      }
      recycle(free_list, first_row_ + static_cast<int64_t>(row), change);
      result.low_pages += div_ceil(pool_.pages.rows[first_row_ + static_cast<int64_t>(row)].low,
                                   pool_.pages.layouts[sequence_.tiers.low].capacity);
      result.demoted += change.demoted;
      result.dropped += change.dropped;
    }
    result.pages_freed = pool_.free_range->count - free_before;
    return result;
  }

 private:
  // Returns: true if tokens of the sequence's row may be dropped: its layer has no window.
  bool is_whole(int64_t row) const { return pool_.window_of(row) == 0; }

  // Their pages stay in the table behind those in use, and recycle() frees them.
  void forget() const {
    for (int64_t row = 0; row < std::ssize(scratch_.changes); ++row) {
      int32_t& high = pool_.pages.rows[first_row_ + row].high;
      high -= sequence_.forgotten;
      if (sequence_.section > 0 && is_whole(row)) {
        pool_.pages.section_first(first_row_ + row) = high - sequence_.section;
      }
    }
  }

  // Multiplies the scores of the replayed section by the squared norms of the tokens' values.
  void weigh_by_values(int64_t row) const {
    const KvPagesView& pages = pool_.pages;
    const KvPageLayout& layout = pages.layouts[sequence_.tiers.high];
    const int32_t* table = pages.table(first_row_ + row);
    const int32_t end = pages.rows[first_row_ + row].high;
    const int32_t begin = end - sequence_.forgotten;
    KvTokenScore* const of_section =
        pages.token_score_row(first_row_ + row) + (sequence_.section > 0 ? 0 : begin);
    float key[kMaxHeadDim];
    float value[kMaxHeadDim];
    for (int32_t place = begin; place < end; ++place) {
      decode_token(layout, pages.page(table[place / layout.capacity]), place % layout.capacity, key,
                   value);
      double squares = 0;
      for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
        squares += double{value[channel]} * value[channel];
      }
      of_section[place - begin].score *= static_cast<float>(squares);
    }
  }

  template <class Body>
  void each_row(Body&& body) const {
    ThreadPool::of(stream_).parallel_for(std::ssize(scratch_.changes), 1,
                                         [&](int64_t row, int64_t, int thread) {
                                           if (is_whole(row)) body(row, thread);
                                         });
  }

  // Pools the scores of the tokens that all counting queries saw. The row is still in order of
  // position.
  void pool_scores(int64_t row) const {
    const KvPolicy& policy = sequence_.policy;
    KvTokenScore* token_scores = pool_.pages.token_score_row(first_row_ + row);
    const int32_t stored = pool_.pages.rows[first_row_ + row].high + sequence_.tokens % kKvGroup;
    const int32_t seen = std::min(stored, sequence_.prompt_tokens - policy.score_window);
    const int32_t reach = policy.score_pool / 2;
    float before[kMaxScorePool];  // scores of the last `reach` tokens before pooling
    for (int32_t i = 0; i < seen; ++i) {
      const float own = token_scores[i].score;
      float highest = own;
      for (int32_t j = std::max(0, i - reach); j < i; ++j) {
        highest = std::max(highest, before[j % reach]);
      }
      for (int32_t j = i + 1; j <= std::min(seen - 1, i + reach); ++j) {
        highest = std::max(highest, token_scores[j].score);
      }
      before[i % reach] = own;
      token_scores[i].score = highest;
    }
  }

  void change(int64_t row, int thread) const {
    const TokenRow tokens(pool_, sequence_, first_row_ + row);
    const RuleInput input{.row = tokens,
                          .sequence = sequence_,
                          .significance = significance_,
                          .budget = scratch_.budgets[static_cast<size_t>(row)],
                          .keys = scratch_.keys_of(thread)};
    const RowCutoffs cutoffs = cutoffs_of(input);
    RowChange& change = scratch_.changes[static_cast<size_t>(row)];
    decide(tokens, significance_, cutoffs, scratch_.decisions_of(row), change);
    compact_row(ops_, pool_, sequence_, scratch_.decisions_of(row), tokens, change);
  }

  // Frees the pages of a replay in a row of a layer with a window.
  void recycle_replay(const FreeList& free_list, int64_t row) const {
    const KvPagesView& pages = pool_.pages;
    int32_t* table = pool_.tables + row * pages.row_pages;
    const int32_t capacity = pages.layouts[sequence_.tiers.high].capacity;
    const auto used = static_cast<int32_t>(div_ceil(pages.rows[row].high, capacity));
    for (int32_t i = used; i < pages.row_pages && table[i] != kNoPage; ++i) {
      free_list.release_page(table[i]);
      table[i] = kNoPage;
    }
  }

  void recycle(const FreeList& free_list, int64_t row, const RowChange& change) const {
    const KvPagesView& pages = pool_.pages;
    int32_t* table = pool_.tables + row * pages.row_pages;
    const auto used = [&](int32_t tokens, uint8_t tier) {
      return static_cast<int32_t>(div_ceil(tokens, pages.layouts[tier].capacity));
    };
    const auto free_entry = [&](int32_t& entry) {
      free_list.release_page(entry);
      entry = kNoPage;
    };
    for (int32_t i = used(pages.rows[row].high, sequence_.tiers.high); i < change.left_pages; ++i) {
      free_entry(table[i]);
    }
    for (int32_t i = used(pages.rows[row].low, sequence_.tiers.low); i < change.right_pages; ++i) {
      free_entry(table[pages.row_pages - 1 - i]);
    }
    if (change.spare != kNoPage) {
      free_list.release_page(change.spare);
    }
  }

  const TokenOps& ops_;
  const KvPool& pool_;
  const KvCompression& sequence_;
  const Significance significance_;
  const Scratch& scratch_;
  const Stream stream_;
  const int64_t first_row_;
};

void compress(const TokenOps& ops, const KvCompressArgs& args, Stream stream) {
  TESSERA_CHECK(args.results.size() == args.sequences.size(), "kv_compress: a result for each");
  TESSERA_CHECK(args.pool.pages.head_dim % ops.head_dim_multiple == 0,
                "kv_compress: a head_dim that the scalar backend serves");
  const Scratch scratch(args.pool.pages, ThreadPool::of(stream).threads(), args.scratch.data());
  TESSERA_CHECK(scratch.bytes <= std::ssize(args.scratch), "kv_compress: scratch is too small");
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    check_compression(args.pool, args.sequences[i]);
    args.results[i] = Compressor(ops, args.pool, args.sequences[i], scratch, stream).run();
  }
}

}  // namespace

namespace scalar {
int64_t kv_compress_scratch_bytes(const KvPagesView& pages, Stream stream) {
  return Scratch(pages, ThreadPool::of(stream).threads(), nullptr).bytes;
}
void kv_compress(const KvCompressArgs& args, Stream stream) {
  compress(kTokenOps, args, stream);
}
}  // namespace scalar

namespace avx2 {
void kv_compress(const KvCompressArgs& args, Stream stream) {
  compress(kTokenOps, args, stream);
}
}  // namespace avx2

namespace avx512 {
void kv_compress(const KvCompressArgs& args, Stream stream) {
  compress(kTokenOps, args, stream);
}
}  // namespace avx512

}  // namespace tessera
