#include <algorithm>
#include <numeric>

#include "kernels/check.h"
#include "kernels/cpu/sampling/ops.h"
#include "kernels/cpu/sampling/weigh.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

constexpr int64_t kStretch = 256;  // tokens weighed at a time

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
                        div_ceil(vocab, kStretch) * int64_t{sizeof(uint64_t)},
                    64);
  }
  RowScratch(std::byte* memory, int64_t vocab)
      : stretches(reinterpret_cast<uint64_t*>(memory)),
        entries(reinterpret_cast<Entry*>(stretches + div_ceil(vocab, kStretch))),
        logits(reinterpret_cast<float*>(entries + vocab)) {}

  uint64_t* stretches;  // [vocab / kStretch] sums of weights
  Entry* entries;       // [vocab]
  float* logits;        // [vocab] original logits: of changed tokens, or of a masked row
};

// Samples one row: from its logits to its token. Time is linear in the vocabulary, also for top_k
// and top_p: cutoffs are found by selection, without a sort.
class RowChoice {
 public:
  struct Plan {
    const SampleRow& row;
    std::span<const LogitChange> changes;
    const uint32_t* mask;  // null: all tokens are allowed
  };
  RowChoice(std::span<float> logits, const Plan& plan, const RowScratch& scratch, Weigh* weigh)
      : logits_(logits),
        row_(plan.row),
        changes_(plan.changes),
        mask_(plan.mask),
        scratch_(scratch),
        weigh_(weigh) {}

  SampledToken sampled() {
    const auto broken =
        std::find_if_not(logits_.begin(), logits_.end(), [](float x) { return is_finite(x); });
    if (broken != logits_.end()) {
      return {.token = static_cast<int32_t>(broken - logits_.begin()),
              .status = SampleStatus::not_finite,
              .logit = *broken};
    }
    best_ = best();
    SampledToken sampled{.max_logit = best_.logit};
    if (row_.wants_logprob) {
      sampled.weight = weight_of_all(1);
    }
    if (!changes_.empty() || mask_ != nullptr) {
      change();
      best_ = best();
    }
    choose(sampled);
    restore();
    sampled.logit = logits_[static_cast<size_t>(sampled.token)];
    return sampled;
  }

 private:
  void change() {
    if (mask_ != nullptr) {
      std::copy(logits_.begin(), logits_.end(), scratch_.logits);
    }
    for (size_t i = 0; i < changes_.size(); ++i) {
      float& logit = logits_[static_cast<size_t>(changes_[i].token)];
      if (mask_ == nullptr) {
        scratch_.logits[i] = logit;
      }
      logit = changes_[i].apply(logit);
    }
    if (mask_ != nullptr) {
      forbid();
    }
  }
  void forbid() {
    const auto vocab = std::ssize(logits_);
    for (int64_t first = 0; first < vocab; first += 32) {
      const uint32_t word = mask_[first / 32];
      const auto stretch = logits_.subspan(
          static_cast<size_t>(first), static_cast<size_t>(std::min<int64_t>(32, vocab - first)));
      for (size_t i = 0; i < stretch.size(); ++i) {
        stretch[i] = (word >> i & 1) != 0 ? stretch[i] : -std::numeric_limits<float>::infinity();
      }
    }
  }
  void restore() {
    if (mask_ != nullptr) {
      std::copy_n(scratch_.logits, logits_.size(), logits_.begin());
      return;
    }
    for (size_t i = 0; i < changes_.size(); ++i) {
      logits_[static_cast<size_t>(changes_[i].token)] = scratch_.logits[i];
    }
  }

  void choose(SampledToken& sampled) {
    if (row_.forced >= 0) {
      sampled.token = row_.forced;
      return;
    }
    if (best_.logit == -std::numeric_limits<float>::infinity()) {
      sampled.status = SampleStatus::none_left;
      return;
    }
    const bool greedy = row_.temperature == 0 || !is_finite(best_.logit);
    sampled.token = greedy ? best_.token : draw();
  }

  Entry best() const {
    Entry best{logits_[0], 0};
    for (size_t i = 1; i < logits_.size(); ++i) {
      if (logits_[i] > best.logit) {
        best = {logits_[i], static_cast<int32_t>(i)};
      }
    }
    return best;
  }

  uint64_t weight_of_all(float temperature) const {
    return weight_of_each(temperature, std::ssize(logits_), logits_.data());
  }

  uint64_t weight_of_each(float temperature, int64_t count, const float* logits) const {
    uint64_t weights[kStretch];
    uint64_t sum = 0;
    for (int64_t first = 0; first < count; first += kStretch) {
      const int64_t part = std::min(kStretch, count - first);
      weigh_({logits + first, part, best_.logit, temperature, weights});
      sum = std::accumulate(weights, weights + part, sum);
    }
    return sum;
  }

  // The worst entries that are kept: by logit, and of the rest by typical_key.
  struct Kept {
    Entry worst{-std::numeric_limits<float>::infinity(), std::numeric_limits<int32_t>::max()};
    Entry least_typical{};  // only with typical_p
  };

  Kept kept() {
    Kept kept;
    if (selects(row_) || row_.typical_p < 1) {
      const int64_t count = collect_best();
      kept.worst = *std::max_element(scratch_.entries, scratch_.entries + count, better);
      if (row_.typical_p < 1) {
        kept.least_typical = least_typical(count);
      }
    }
    return kept;
  }

  // Returns: the number of entries that min_p, top_k and top_p keep. They come first.
  int64_t collect_best() {
    const float lowest = best_.logit + row_.min_logit;
    int64_t kept = collect(lowest);
    Entry* const entries = scratch_.entries;
    if (row_.top_k > 0 && row_.top_k < kept) {
      std::nth_element(entries, entries + row_.top_k - 1, entries + kept, better);
      kept = row_.top_k;
    }
    if (row_.top_p < 1) {
      const uint64_t total =
          kept == std::ssize(logits_) ? weight_of_all(row_.temperature) : weight(0, kept);
      if (row_.top_k == 0) {
        // Logits below this bound cannot be needed: all of them together weigh at most half of the
        // share that top_p leaves out. This usually keeps nearly the whole vocabulary out of the
        // selection.
        const double left_out = 0.5 * (1.0 - row_.top_p) * static_cast<double>(total) /
                                static_cast<double>(logits_.size());
        const double share = left_out / static_cast<double>(kWeightOfBest);
        kept = collect(
            std::max(lowest, best_.logit + row_.temperature * static_cast<float>(std::log(share))));
      }
      kept = count_reaching(weight_wanted(row_.top_p, total), kept, better);
    }
    return kept;
  }

  uint32_t octaves(Entry entry) const {
    return octaves_of(entry.logit, best_.logit, row_.temperature);
  }
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
    Entry* end = scratch_.entries;
    for (size_t i = 0; i < logits_.size(); ++i) {
      if (logits_[i] >= lowest) {
        *end++ = {logits_[i], static_cast<int32_t>(i)};
      }
    }
    return end - scratch_.entries;
  }

  uint64_t weight(int64_t begin, int64_t end) const {  // sum over entries
    float logits[kStretch];
    uint64_t sum = 0;
    for (int64_t first = begin; first < end; first += kStretch) {
      const int64_t part = std::min(kStretch, end - first);
      for (int64_t i = 0; i < part; ++i) {
        logits[i] = scratch_.entries[first + i].logit;
      }
      sum += weight_of_each(row_.temperature, part, logits);
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

  int32_t draw() {
    const Kept kept = this->kept();
    const bool typical = row_.typical_p < 1;
    const auto vocab = std::ssize(logits_);
    uint64_t weights[kStretch];
    const auto weigh_stretch = [&](int64_t first) {
      const int64_t count = std::min(kStretch, vocab - first);
      weigh_({logits_.data() + first, count, best_.logit, row_.temperature, weights});
      uint64_t sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        const Entry entry{logits_[static_cast<size_t>(first + i)], static_cast<int32_t>(first + i)};
        const bool left_out =
            better(kept.worst, entry) || (typical && more_typical(kept.least_typical, entry));
        weights[i] = left_out ? 0 : weights[i];
        sum += weights[i];
      }
      return sum;
    };
    uint64_t total = 0;
    for (int64_t first = 0; first < vocab; first += kStretch) {
      const uint64_t sum = weigh_stretch(first);
      scratch_.stretches[first / kStretch] = sum;
      total += sum;
    }
    uint64_t point = point_of(row_.draw, total);
    int64_t stretch = 0;
    while (point >= scratch_.stretches[stretch]) {
      point -= scratch_.stretches[stretch++];
    }
    weigh_stretch(stretch * kStretch);
    int64_t token = 0;
    while (point >= weights[token]) {
      point -= weights[token++];
    }
    return static_cast<int32_t>(stretch * kStretch + token);
  }

  std::span<float> logits_;
  const SampleRow& row_;
  std::span<const LogitChange> changes_;
  const uint32_t* mask_;
  RowScratch scratch_;
  Weigh* weigh_;
  Entry best_;
  uint32_t mean_ = 0;  // octaves, of typical sampling
};

void sample_with(Weigh* weigh, const SampleArgs& args, Stream stream) {
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
          RowChoice(args.logits.row(row.row), {row, changes, mask}, scratch, weigh).sampled();
    }
  });
}

}  // namespace

int64_t scalar::sample_scratch_bytes(const SampleLimits& limits, Stream stream) {
  return ThreadPool::of(stream).threads() * RowScratch::bytes(limits.vocab);
}

void scalar::weigh(const WeighArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    args.weights[i] = weight_of(args.logits[i], args.best, args.temperature);
  }
}

void scalar::sample(const SampleArgs& args, Stream stream) {
  sample_with(scalar::weigh, args, stream);
}
void avx2::sample(const SampleArgs& args, Stream stream) {
  sample_with(avx2::weigh, args, stream);
}
void avx512::sample(const SampleArgs& args, Stream stream) {
  sample_with(avx512::weigh, args, stream);
}

}  // namespace tessera
