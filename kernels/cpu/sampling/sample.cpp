#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"
#include "kernels/cpu/sampling/row_passes_lanes.h"
#include "kernels/cpu/sampling/sampling_ops.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

constexpr int64_t kStretch = 256;  // tokens weighed at a time, whole words of a mask
constexpr int64_t kTile = 64;      // tokens whose highest logit bounds that of the k best

struct Entry {
  float logit = 0;
  int32_t token = 0;
};
bool better(Entry a, Entry b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// Scratch of one worker. Rows of different vocabularies share the memory. Not owned.
struct RowScratch {
  static constexpr int64_t bytes(int64_t vocab) {
    return round_up(vocab * int64_t{sizeof(Entry)} + vocab * int64_t{sizeof(float)} +
                        div_ceil(vocab, kStretch) * int64_t{sizeof(uint64_t)} +
                        mask_words(vocab) * int64_t{sizeof(uint32_t)},
                    64);
  }
  RowScratch(std::byte* memory, int64_t vocab)
      : stretches(reinterpret_cast<uint64_t*>(memory)),
        entries(reinterpret_cast<Entry*>(stretches + div_ceil(vocab, kStretch))),
        logits(reinterpret_cast<float*>(entries + vocab)),
        kept(reinterpret_cast<uint32_t*>(logits + vocab)) {}

  uint64_t* stretches;  // [vocab / kStretch] sums of weights
  Entry* entries;       // [vocab]
  float* logits;        // [vocab] original logits of changed tokens
  uint32_t* kept;       // [mask_words(vocab)]
};

// Samples one row: from its logits to its token. Time is linear in the vocabulary, also for top_k
// and top_p: cutoffs are found by selection, without a sort. Tokens that the mask leaves out are
// neither written nor weighed.
class RowChoice {
 public:
  struct Plan {
    const SampleRow& row;
    std::span<const LogitChange> changes;
    const uint32_t* mask;  // null: all tokens are allowed
  };
  RowChoice(std::span<float> logits, const Plan& plan, const RowScratch& scratch,
            const RowPasses& passes)
      : logits_(logits),
        row_(plan.row),
        changes_(plan.changes),
        mask_(plan.mask),
        scratch_(scratch),
        passes_(passes) {}

  SampledToken sampled() {
    const Highest highest = passes_.highest(tokens(mask_));
    if (!highest.finite) {
      const auto broken =
          std::find_if_not(logits_.begin(), logits_.end(), [](float x) { return is_finite(x); });
      return {.token = static_cast<int32_t>(broken - logits_.begin()),
              .status = SampleStatus::not_finite,
              .logit = *broken};
    }
    SampledToken sampled{.max_logit = highest.of_all};
    if (row_.wants_logprob) {
      sampled.weight =
          passes_.weight({.tokens = tokens(nullptr), .best = highest.of_all, .temperature = 1});
    }
    best_ = highest.of_allowed;
    if (!changes_.empty()) {
      change();
      best_ = passes_.highest(tokens(mask_)).of_allowed;
    }
    choose(sampled);
    restore();
    sampled.logit = logits_[static_cast<size_t>(sampled.token)];
    return sampled;
  }

 private:
  // Returns: the tokens of the row from `first` on, at most `count` of them.
  Tokens tokens(const uint32_t* mask, int64_t first = 0,
                int64_t count = std::numeric_limits<int64_t>::max()) const {
    return {.logits = logits_.data() + first,
            .count = std::min(count, std::ssize(logits_) - first),
            .mask = mask == nullptr ? nullptr : mask + first / 32};
  }

  void change() {
    for (size_t i = 0; i < changes_.size(); ++i) {
      float& logit = logits_[static_cast<size_t>(changes_[i].token)];
      scratch_.logits[i] = logit;
      logit = changes_[i].apply(logit);
    }
  }
  void restore() {
    for (size_t i = 0; i < changes_.size(); ++i) {
      logits_[static_cast<size_t>(changes_[i].token)] = scratch_.logits[i];
    }
  }

  void choose(SampledToken& sampled) {
    if (row_.forced >= 0) {
      sampled.token = row_.forced;
      return;
    }
    if (best_ == -std::numeric_limits<float>::infinity()) {
      sampled.status = SampleStatus::none_left;
      return;
    }
    const bool greedy = row_.temperature == 0 || !is_finite(best_);
    sampled.token = greedy ? first_best() : draw();
  }

  int32_t first_best() const {
    for (int64_t first = 0;; first += kStretch) {
      const Tokens part = tokens(mask_, first, kStretch);
      passes_.keep(part, best_, scratch_.kept);
      for (int64_t i = 0; i < mask_words(part.count); ++i) {
        if (scratch_.kept[i] != 0) {
          return static_cast<int32_t>(first + 32 * i + std::countr_zero(scratch_.kept[i]));
        }
      }
    }
  }

  uint64_t weight(const Tokens& tokens) const {
    return passes_.weight({.tokens = tokens, .best = best_, .temperature = row_.temperature});
  }

  // Returns: the worst entry that is kept.
  Entry worst_kept() {
    const float lowest = best_ + row_.min_logit;
    Entry* const entries = scratch_.entries;
    if (row_.top_k > 0) {
      int64_t kept = collect(std::max(lowest, bound_of_best(row_.top_k)));
      if (row_.top_k < kept) {
        std::nth_element(entries, entries + row_.top_k - 1, entries + kept, better);
        kept = row_.top_k;
      }
      if (row_.top_p < 1) {
        kept = count_reaching(weight_wanted(row_.top_p, weight(0, kept)), kept, better);
      }
      return *std::max_element(entries, entries + kept, better);
    }
    if (row_.top_p == 1) {
      return {lowest, std::numeric_limits<int32_t>::max()};
    }
    passes_.keep(tokens(mask_), lowest, scratch_.kept);
    const uint64_t total = weight(tokens(scratch_.kept));
    // Logits below this bound cannot be needed: all of them together weigh at most half of the
    // share that top_p leaves out. This usually keeps nearly the whole vocabulary out of the
    // selection.
    const double left_out =
        0.5 * (1.0 - row_.top_p) * static_cast<double>(total) / static_cast<double>(logits_.size());
    const double share = left_out / static_cast<double>(kWeightOfBest);
    int64_t kept =
        collect(std::max(lowest, best_ + row_.temperature * static_cast<float>(std::log(share))));
    kept = count_reaching(weight_wanted(row_.top_p, total), kept, better);
    return *std::max_element(entries, entries + kept, better);
  }

  // Returns: a logit that at least `count` allowed tokens reach, if so many tiles have one. Each of
  // the highest tiles has one such token.
  float bound_of_best(int32_t count) {
    const int64_t tiles = div_ceil(std::ssize(logits_), kTile);
    if (count > tiles) {
      return -std::numeric_limits<float>::infinity();
    }
    float* const highest = reinterpret_cast<float*>(scratch_.entries);
    for (int64_t i = 0; i < tiles; ++i) {
      highest[i] = passes_.highest(tokens(mask_, i * kTile, kTile)).of_allowed;
    }
    std::nth_element(highest, highest + count - 1, highest + tiles, std::greater<>());
    return highest[count - 1];
  }

  uint32_t octaves(Entry entry) const { return octaves_of(entry.logit, best_, row_.temperature); }
  bool more_typical(Entry a, Entry b) const {
    const uint32_t a_key = typical_key(octaves(a), mean_);
    const uint32_t b_key = typical_key(octaves(b), mean_);
    return a_key > b_key || (a_key == b_key && a.token < b.token);
  }

  // Returns: the least typical of the first `count` entries that typical_p keeps.
  Entry least_typical(int64_t count) {
    Entry* const entries = scratch_.entries;
    const uint64_t total = weight(0, count);
    uint64_t surprise = 0;
    for (int64_t i = 0; i < count; ++i) {
      surprise += surprise_of(octaves(entries[i]));
    }
    mean_ = mean_octaves(surprise, total);
    const auto order = [this](Entry a, Entry b) { return more_typical(a, b); };
    const int64_t kept = count_reaching(weight_wanted(row_.typical_p, total), count, order);
    return *std::max_element(entries, entries + kept, order);
  }

  int64_t collect(float lowest) {
    passes_.keep(tokens(mask_), lowest, scratch_.kept);
    return collect_kept();
  }
  int64_t collect_kept() {
    Entry* end = scratch_.entries;
    for_each_kept(0, mask_words(std::ssize(logits_)), [&](int64_t token) {
      *end++ = {logits_[static_cast<size_t>(token)], static_cast<int32_t>(token)};
    });
    return end - scratch_.entries;
  }

  template <class Body>
  void for_each_kept(int64_t first_word, int64_t words, Body&& body) const {
    for (int64_t i = first_word; i < first_word + words; ++i) {
      for (uint32_t bits = scratch_.kept[i]; bits != 0; bits &= bits - 1) {
        body(32 * i + std::countr_zero(bits));
      }
    }
  }

  uint64_t weight(int64_t begin, int64_t end) const {  // sum over entries
    float logits[kStretch];
    uint64_t sum = 0;
    for (int64_t first = begin; first < end; first += kStretch) {
      const int64_t part = std::min(kStretch, end - first);
      for (int64_t i = 0; i < part; ++i) {
        logits[i] = scratch_.entries[first + i].logit;
      }
      sum += weight(Tokens{.logits = logits, .count = part, .mask = nullptr});
    }
    return sum;
  }

  // Returns: number of the first in `order` of the first `count` entries that together weigh at
  // least `wanted`. These come first afterwards. Each round halves the undecided range.
  template <class Order>
  int64_t count_reaching(uint64_t wanted, int64_t count, const Order& order) {
    int64_t low = 0;  // the first `low` do not reach `wanted`, the first `high` do
    int64_t high = count;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      Entry* const entries = scratch_.entries;
      std::nth_element(entries + low, entries + middle, entries + high, order);
      const uint64_t half = weight(low, middle);
      if (half >= wanted) {
        high = middle;
      } else {
        wanted -= half;
        low = middle;
      }
    }
    return high;
  }

  // Sets the bits of kept tokens: those not worse than `worst`.
  void keep(Entry worst) {
    passes_.keep(tokens(mask_), worst.logit, scratch_.kept);
    const int64_t words = mask_words(std::ssize(logits_));
    for_each_kept(
        std::min<int64_t>(worst.token / 32, words),
        words - std::min<int64_t>(worst.token / 32, words), [&](int64_t token) {
          const Entry entry{logits_[static_cast<size_t>(token)], static_cast<int32_t>(token)};
          if (better(worst, entry)) {
            scratch_.kept[token / 32] &= ~(uint32_t{1} << token % 32);
          }
        });
  }

  // Clears the bits of kept tokens that typical_p leaves out.
  void keep_typical() {
    const Entry least = least_typical(collect_kept());
    for_each_kept(0, mask_words(std::ssize(logits_)), [&](int64_t token) {
      const Entry entry{logits_[static_cast<size_t>(token)], static_cast<int32_t>(token)};
      if (more_typical(least, entry)) {
        scratch_.kept[token / 32] &= ~(uint32_t{1} << token % 32);
      }
    });
  }

  int32_t draw() {
    const uint32_t* kept = mask_;
    const bool typical = row_.typical_p < 1;
    if (selects(row_) || typical) {
      keep(selects(row_) ? worst_kept()
                         : Entry{-std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<int32_t>::max()});
      if (typical) {
        keep_typical();
      }
      kept = scratch_.kept;
    }
    const auto vocab = std::ssize(logits_);
    uint64_t total = 0;
    for (int64_t first = 0; first < vocab; first += kStretch) {
      const uint64_t sum = weight(tokens(kept, first, kStretch));
      scratch_.stretches[first / kStretch] = sum;
      total += sum;
    }
    uint64_t point = point_of(row_.draw, total);
    int64_t stretch = 0;
    while (point >= scratch_.stretches[stretch]) {
      point -= scratch_.stretches[stretch++];
    }
    for (int64_t token = stretch * kStretch;; ++token) {
      if (kept == nullptr || allows(kept, token)) {
        const uint64_t weight =
            weight_of(logits_[static_cast<size_t>(token)], best_, row_.temperature);
        if (point < weight) {
          return static_cast<int32_t>(token);
        }
        point -= weight;
      }
    }
  }

  std::span<float> logits_;
  const SampleRow& row_;
  std::span<const LogitChange> changes_;
  const uint32_t* mask_;
  RowScratch scratch_;
  const RowPasses& passes_;
  float best_ = 0;     // highest logit of the allowed tokens
  uint32_t mean_ = 0;  // octaves, of typical sampling
};

// Runs of the passes, token by token.
struct PlainLanes {
  struct Highest {
    tessera::Highest highest{.of_all = -std::numeric_limits<float>::infinity(),
                             .of_allowed = -std::numeric_limits<float>::infinity()};
    void add(const float* logits, uint32_t allowed) {
      for (int i = 0; i < 32; ++i) {
        highest.finite = highest.finite && is_finite(logits[i]);
        highest.of_all = std::max(highest.of_all, logits[i]);
        if ((allowed >> i & 1) != 0) {
          highest.of_allowed = std::max(highest.of_allowed, logits[i]);
        }
      }
    }
    tessera::Highest total() const { return highest; }
  };

  static uint32_t at_least(const float* logits, float least) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) {
      bits |= uint32_t{logits[i] >= least} << i;
    }
    return bits;
  }

  struct Weights {
    Weights(float of_best, float at_temperature) : best(of_best), temperature(at_temperature) {}
    void add(const float* logits, uint32_t allowed) {
      for (; allowed != 0; allowed &= allowed - 1) {
        sum += weight_of(logits[std::countr_zero(allowed)], best, temperature);
      }
    }
    uint64_t total() const { return sum; }
    const float best;
    const float temperature;
    uint64_t sum = 0;
  };
};

void sample_with(const RowPasses& passes, const SampleArgs& args, Stream stream) {
  const int64_t vocab = args.logits.cols;
  ThreadPool& pool = ThreadPool::of(stream);
  TESSERA_CHECK(vocab <= kMaxSampledVocab, "sample: the vocabulary exceeds kMaxSampledVocab");
  TESSERA_CHECK(std::ssize(args.scratch) >= pool.threads() * RowScratch::bytes(vocab),
                "scratch for each thread");
  pool.parallel_for(std::ssize(args.rows), 1, [&](int64_t begin, int64_t end, int worker) {
    const RowScratch scratch(args.scratch.data() + worker * RowScratch::bytes(vocab), vocab);
    for (int64_t i = begin; i < end; ++i) {
      const SampleRow& row = args.rows[static_cast<size_t>(i)];
      const auto changes = args.changes.subspan(static_cast<size_t>(row.first_change),
                                                static_cast<size_t>(row.changes));
      const uint32_t* mask =
          row.mask < 0 ? nullptr : args.masks.data() + row.mask * mask_words(vocab);
      args.sampled[static_cast<size_t>(i)] =
          RowChoice(args.logits.row(row.row), {row, changes, mask}, scratch, passes).sampled();
    }
  });
}

}  // namespace

int64_t scalar::sample_scratch_bytes(const SampleLimits& limits, Stream stream) {
  return ThreadPool::of(stream).threads() * RowScratch::bytes(limits.vocab);
}

const RowPasses scalar::kRowPasses = RowPassesOf<PlainLanes>::all();

void scalar::sample(const SampleArgs& args, Stream stream) {
  sample_with(scalar::kRowPasses, args, stream);
}
void avx2::sample(const SampleArgs& args, Stream stream) {
  sample_with(avx2::kRowPasses, args, stream);
}
void avx512::sample(const SampleArgs& args, Stream stream) {
  sample_with(avx512::kRowPasses, args, stream);
}

}  // namespace tessera
