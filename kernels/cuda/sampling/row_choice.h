#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/simt/block.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/sampling.h"

// The choice of a token from a row (steps 4 and 5 of kernels/sampling.h), by one block. Each query
// on a row is one pass of its threads; nothing is sorted or copied.
namespace tessera::cuda {

using namespace simt;

// Keys tried in one pass over a row. A pass leaves an eighth of the range.
constexpr int32_t kKeys = 7;

TESSERA_DEVICE int32_t warps() {
  return threads() / kWarp;
}
TESSERA_DEVICE uint64_t min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

// A row of logits under its mask: a token that is left out has -infinity.
struct MaskedRow {
  const float* logits;
  const uint32_t* mask;  // null: all tokens are allowed

  TESSERA_DEVICE float operator[](int32_t token) const {
    return mask == nullptr || allows(mask, token) ? logits[token]
                                                  : -std::numeric_limits<float>::infinity();
  }
};

// Kept tokens: those with higher keys, and the first `ties` tokens with this key.
struct Cut {
  uint32_t key = 0;
  uint64_t ties = ~uint64_t{0};
};

struct Counted {
  uint64_t above = 0;  // weight or number of the tokens with a key above the cutoff's
  uint64_t ties = 0;   // number of tokens with the cutoff's key
};

struct ChoiceMemory {
  OfWarps<uint64_t> totals;
  OfWarps<uint64_t> of_keys[kKeys];
  uint64_t key_totals[kKeys];
  OfWarps<Counted> parts;
};

// Ranks of a row's tokens. Tokens with the same key have the same weight.
struct ByLogit {
  float best;
  float temperature;

  TESSERA_DEVICE uint32_t key(float logit) const { return logit_key(logit); }
  TESSERA_DEVICE uint32_t highest() const { return logit_key(best); }
  TESSERA_DEVICE uint64_t weight_of_key(uint32_t key) const {
    return weight_of(logit_of(key), best, temperature);
  }
};
struct ByTypicality {
  float best;
  float temperature;
  uint32_t mean;  // octaves

  TESSERA_DEVICE uint32_t key(float logit) const {
    return typical_key(octaves_of(logit, best, temperature), mean);
  }
  TESSERA_DEVICE uint32_t highest() const { return kMostTypical; }
  TESSERA_DEVICE uint64_t weight_of_key(uint32_t key) const {
    return weight_of_octaves(octaves_of_key(key, mean));
  }
};

// A row under a cut by logit: other tokens have -infinity, which weighs nothing.
struct CutRow {
  MaskedRow logits;
  uint32_t key;
  int32_t last_tie;

  TESSERA_DEVICE float operator[](int32_t token) const {
    const float logit = logits[token];
    const uint32_t own = logit_key(logit);
    return own > key || (own == key && token <= last_tie) ? logit
                                                          : -std::numeric_limits<float>::infinity();
  }
};

template <class Row, class Order>
class RowChoice {
 public:
  TESSERA_DEVICE RowChoice(const Row& logits, int32_t vocab, const Order& order,
                           const SampleRow& row, ChoiceMemory& memory)
      : logits_(logits), vocab_(vocab), order_(order), row_(row), memory_(memory) {}

  // Returns: the tokens that min_p, top_k and top_p keep. Requires: ByLogit.
  TESSERA_DEVICE Cut best() const {
    Cut cut{};
    if (selects(row_)) {
      cut.key = logit_key(order_.best + row_.min_logit);
      if (row_.top_k > 0) {
        cut = best_few(cut);
      }
      if (row_.top_p < 1) {
        cut = likeliest(cut, row_.top_p);
      }
    }
    return cut;
  }

  // Returns: the id of the last token that the cut keeps of those with its key.
  TESSERA_DEVICE int32_t last_tie(const Cut& cut) const {
    const auto nothing = [](float) { return uint64_t{0}; };
    if (count(cut.key, nothing).ties <= cut.ties) {
      return vocab_ - 1;
    }
    int32_t begin = 0;  // the token is in [begin, end), number `left` of the ties there
    int32_t end = vocab_;
    uint64_t left = cut.ties;
    while (end - begin > 1) {
      const int32_t middle = begin + (end - begin) / 2;
      const Counted own = count_between(cut.key, nothing, begin + thread(), middle, threads());
      const uint64_t ties = block_total(own.ties, memory_.totals);
      if (ties >= left) {
        end = middle;
      } else {
        left -= ties;
        begin = middle;
      }
    }
    return begin;
  }

  // Returns: mean octaves of the row's tokens.
  TESSERA_DEVICE uint32_t mean() const {
    uint64_t total = 0;
    uint64_t surprise = 0;
    for (int32_t i = thread(); i < vocab_; i += threads()) {
      const uint32_t octaves = octaves_of(logits_[i], order_.best, row_.temperature);
      total += weight_of_octaves(octaves);
      surprise += surprise_of(octaves);
    }
    total = block_total(total, memory_.totals);
    return mean_octaves(block_total(surprise, memory_.totals), total);
  }

  // Returns: the fewest of the cut's tokens that together weigh this share of its total.
  TESSERA_DEVICE Cut likeliest(const Cut& cut, float share) const {
    const auto of_logit = [this](float logit) { return weight(logit); };
    const Counted all = count(cut.key, of_logit);
    const uint64_t ties = min(all.ties, cut.ties);
    const uint64_t total = all.above + (ties == 0 ? 0 : ties * order_.weight_of_key(cut.key));
    const uint64_t wanted = weight_wanted(share, total);
    const uint32_t key = highest_reaching(wanted, cut.key, of_logit);
    const uint64_t missing = wanted - count(key, of_logit).above;
    const uint64_t width = order_.weight_of_key(key);
    return {key, (missing + width - 1) / width};
  }

  // Each warp sums the weights of one part of the tokens. The part that contains the point is
  // divided again.
  TESSERA_DEVICE int32_t draw_of(Cut cut) const {
    const uint64_t tie = cut.key == 0 ? 0 : order_.weight_of_key(cut.key);
    int32_t begin = 0;
    int32_t end = vocab_;
    uint64_t point = 0;
    while (end - begin > 1) {
      const int32_t part = (end - begin + warps() - 1) / warps();
      weigh_parts(cut.key, begin, end, part);
      const auto width = [&](int32_t w) {
        const Counted& counted = memory_.parts.of[w];
        return counted.above + min(counted.ties, cut.ties) * tie;
      };
      const auto pass = [&](int32_t w) { cut.ties -= min(memory_.parts.of[w].ties, cut.ties); };
      if (end - begin == vocab_) {
        const Cut before = cut;
        uint64_t total = 0;
        for (int32_t w = 0; w < warps(); ++w) {
          total += width(w);
          pass(w);
        }
        cut = before;
        point = point_of(row_.draw, total);
      }
      int32_t w = 0;
      for (; point >= width(w); ++w) {
        point -= width(w);
        pass(w);
      }
      begin += w * part;
      end = begin + part < end ? begin + part : end;
    }
    return begin;
  }

 private:
  TESSERA_DEVICE uint64_t weight(float logit) const {
    return weight_of(logit, order_.best, row_.temperature);
  }

  TESSERA_DEVICE Cut best_few(Cut cut) const {
    const auto one = [](float) { return uint64_t{1}; };
    const auto wanted = static_cast<uint64_t>(row_.top_k);
    cut.key = highest_reaching(wanted, cut.key, one);
    cut.ties = wanted - count(cut.key, one).above;
    return cut;
  }

  // Returns: highest key such that the tokens with that key or a higher one sum to `wanted` or
  // more, but at least `low`. The tokens from `low` on need not reach `wanted`.
  template <class Value>
  TESSERA_DEVICE uint32_t highest_reaching(uint64_t wanted, uint32_t low, Value&& value) const {
    uint32_t high = order_.highest();
    while (low < high) {
      const uint32_t step = (high - low) / (kKeys + 1) + 1;
      uint64_t sums[kKeys] = {};
      for (int32_t i = thread(); i < vocab_; i += threads()) {
        const float logit = logits_[i];
        const uint32_t key = order_.key(logit);
        if (key >= low + step) {
          const uint64_t own = value(logit);
          TESSERA_UNROLL
          for (int32_t k = 0; k < kKeys; ++k) {
            sums[k] += key >= low + static_cast<uint32_t>(k + 1) * step ? own : 0;
          }
        }
      }
      const auto reached = static_cast<uint32_t>(keys_reaching(wanted, sums));
      low += reached * step;
      high = reached < kKeys && low + step - 1 < high ? low + step - 1 : high;
    }
    return low;
  }

  // Returns: number of the block's sums that are `wanted` or more. Requires: sums descend.
  TESSERA_DEVICE int32_t keys_reaching(uint64_t wanted, uint64_t (&sums)[kKeys]) const {
    TESSERA_UNROLL
    for (int32_t k = 0; k < kKeys; ++k) {
      sums[k] = warp_total(sums[k]);
    }
    if (lane() == 0) {
      TESSERA_UNROLL
      for (int32_t k = 0; k < kKeys; ++k) {
        memory_.of_keys[k].of[warp()] = sums[k];
      }
    }
    sync_block();
    if (thread() < kKeys) {
      uint64_t total = 0;
      for (int32_t w = 0; w < warps(); ++w) {
        total += memory_.of_keys[thread()].of[w];
      }
      memory_.key_totals[thread()] = total;
    }
    sync_block();
    int32_t reaching = 0;
    for (int32_t k = 0; k < kKeys; ++k) {
      reaching += memory_.key_totals[k] >= wanted ? 1 : 0;
    }
    return reaching;
  }

  template <class Value>
  TESSERA_DEVICE Counted count(uint32_t key, Value&& value) const {
    const Counted own = count_between(key, value, thread(), vocab_, threads());
    return {block_total(own.above, memory_.totals), block_total(own.ties, memory_.totals)};
  }

  template <class Value>
  TESSERA_DEVICE Counted count_between(uint32_t key, Value&& value, int32_t begin, int32_t end,
                                       int32_t step) const {
    Counted counted{};
    TESSERA_UNROLL_BY(4)
    for (int32_t i = begin; i < end; i += step) {
      const float logit = logits_[i];
      const uint32_t own = order_.key(logit);
      counted.above += own > key ? value(logit) : 0;
      counted.ties += own == key ? 1 : 0;
    }
    return counted;
  }

  TESSERA_DEVICE void weigh_parts(uint32_t key, int32_t begin, int32_t end, int32_t part) const {
    const int32_t first = begin + warp() * part;
    Counted counted = count_between(
        key, [this](float logit) { return weight(logit); }, first + lane(),
        first + part < end ? first + part : end, kWarp);
    counted = {warp_total(counted.above), warp_total(counted.ties)};
    sync_block();  // the previous round's parts have been read
    if (lane() == 0) {
      memory_.parts.of[warp()] = counted;
    }
    sync_block();
  }

  Row logits_;
  int32_t vocab_;
  Order order_;
  const SampleRow& row_;
  ChoiceMemory& memory_;
};

// Returns: the drawn token. kTypical: typical_p of a row may be less than 1.
template <bool kTypical>
TESSERA_DEVICE int32_t draw(const MaskedRow& logits, int32_t vocab, float best,
                            const SampleRow& row, ChoiceMemory& memory) {
  const ByLogit by_logit{best, row.temperature};
  const RowChoice<MaskedRow, ByLogit> all(logits, vocab, by_logit, row, memory);
  const Cut cut = all.best();
  if (!kTypical || row.typical_p == 1) {
    return all.draw_of(cut);
  }
  const CutRow kept{logits, cut.key, all.last_tie(cut)};
  const uint32_t mean = RowChoice<CutRow, ByLogit>(kept, vocab, by_logit, row, memory).mean();
  const RowChoice<CutRow, ByTypicality> typical(kept, vocab, {best, row.temperature, mean}, row,
                                                memory);
  return typical.draw_of(typical.likeliest(Cut{}, row.typical_p));
}

}  // namespace tessera::cuda
