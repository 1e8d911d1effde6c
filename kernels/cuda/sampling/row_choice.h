#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/sampling/row_threads.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/ops/sampling.h"

// The choice of a token from a row (steps 4 and 5 of kernels/ops/sampling.h), by one cluster. Each
// query on a row is one pass of its threads; nothing is sorted or copied.
namespace tessera::cuda {

// Result of a draw in a block without the drawn token.
constexpr int32_t kElsewhere = -1;

TESSERA_DEVICE uint64_t min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}
TESSERA_DEVICE int32_t least(int32_t a, int32_t b) {
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

// The rest of the line of kept tokens, and the point on it.
struct Line {
  uint64_t tie;   // weight of a token with the cutoff's key
  uint64_t ties;  // tokens with that key that are kept
  uint64_t point;

  TESSERA_DEVICE uint64_t width(const Counted& part) const {
    return part.above + min(part.ties, ties) * tie;
  }
  TESSERA_DEVICE void pass(const Counted& part) { ties -= min(part.ties, ties); }
  // Returns: the first part that contains the point, whose begin is the line's begin from now on.
  template <class Part>
  TESSERA_DEVICE int32_t find(Part&& part) {
    int32_t i = 0;
    TESSERA_UNROLL_BY(1)
    for (; point >= width(part(i)); ++i) {
      point -= width(part(i));
      pass(part(i));
    }
    return i;
  }
};

// Shared memory of each block.
struct ChoiceMemory {
  RowMemory row;
  OfWarps<Counted> parts;
};

// The threads of a choice, and their block's memory.
struct Chooser {
  RowThreads& threads;
  ChoiceMemory& memory;
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
                           const SampleRow& row, const Chooser& chooser)
      : logits_(logits),
        vocab_(vocab),
        order_(order),
        row_(row),
        threads_(chooser.threads),
        parts_(chooser.memory.parts) {}

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
      const Counted own =
          count_between(cut.key, nothing, begin + threads_.number(), middle, threads_.count());
      const uint64_t ties = threads_.total(own.ties);
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
    uint64_t sums[2] = {};  // of weights, of surprise
    for (int32_t i = threads_.number(); i < vocab_; i += threads_.count()) {
      const uint32_t octaves = octaves_of(logits_[i], order_.best, row_.temperature);
      sums[0] += weight_of_octaves(octaves);
      sums[1] += surprise_of(octaves);
    }
    threads_.totals(sums);
    return mean_octaves(sums[1], sums[0]);
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

  // Each block has a part of the tokens, of which each warp sums the weights of one part. The block
  // that contains the point divides its warp's part again.
  // Returns: the drawn token in that block, kElsewhere in the others.
  TESSERA_DEVICE int32_t draw_of(Cut cut) const {
    Line line{cut.key == 0 ? 0 : order_.weight_of_key(cut.key), cut.ties, 0};
    const int32_t of_block = (vocab_ + threads_.blocks() - 1) / threads_.blocks();
    int32_t begin = least(threads_.rank() * of_block, vocab_);
    int32_t end = least(begin + of_block, vocab_);
    for (bool whole = true;; whole = false) {
      const int32_t part = (end - begin + warps() - 1) / warps();
      const Counted of_warp = weigh_parts(cut.key, begin, end, part);
      if (!whole) {
        sync_block();
      } else if (drawn_block(of_warp, line) != threads_.rank()) {
        return kElsewhere;
      }
      const int32_t w = line.find([&](int32_t i) { return parts_.of[i]; });
      begin += w * part;
      end = least(begin + part, end);
      if (end - begin <= 1) {
        return begin;
      }
      sync_block();  // the parts have been read
    }
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
      for (int32_t i = threads_.number(); i < vocab_; i += threads_.count()) {
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
      const auto reached = static_cast<uint32_t>(threads_.reaching(wanted, sums));
      low += reached * step;
      high = reached < kKeys && low + step - 1 < high ? low + step - 1 : high;
    }
    return low;
  }

  template <class Value>
  TESSERA_DEVICE Counted count(uint32_t key, Value&& value) const {
    const Counted own = count_between(key, value, threads_.number(), vocab_, threads_.count());
    uint64_t sums[] = {own.above, own.ties};
    threads_.totals(sums);
    return {sums[0], sums[1]};
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

  // Counts a part of [begin, end) in each warp of the block, and writes it to memory. Returns: the
  // warp's own.
  TESSERA_DEVICE Counted weigh_parts(uint32_t key, int32_t begin, int32_t end, int32_t part) const {
    const int32_t first = begin + warp() * part;
    Counted counted = count_between(
        key, [this](float logit) { return weight(logit); }, first + lane(),
        least(first + part, end), kWarp);
    counted = {warp_total(counted.above), warp_total(counted.ties)};
    if (lane() == 0) {
      parts_.of[warp()] = counted;
    }
    return counted;
  }

  // Draws a point of the whole line. Returns: rank of the block that contains it. A barrier of the
  // row's threads.
  TESSERA_DEVICE int32_t drawn_block(const Counted& of_warp, Line& line) const {
    const uint64_t sums[] = {of_warp.above, of_warp.ties};
    threads_.share_totals(sums);
    const auto block = [&](int32_t rank) {
      const uint64_t* of = threads_.of_block(rank);
      return Counted{of[0], of[1]};
    };
    Line rest = line;
    uint64_t total = 0;
    TESSERA_UNROLL_BY(1)
    for (int32_t rank = 0; rank < threads_.blocks(); ++rank) {
      total += rest.width(block(rank));
      rest.pass(block(rank));
    }
    line.point = point_of(row_.draw, total);
    return line.find(block);
  }

  Row logits_;
  int32_t vocab_;
  Order order_;
  const SampleRow& row_;
  RowThreads& threads_;
  OfWarps<Counted>& parts_;
};

// Returns: the drawn token in one block of the row, kElsewhere in the others. kTypical: typical_p
// of a row may be less than 1.
template <bool kTypical>
TESSERA_DEVICE int32_t draw(const MaskedRow& logits, int32_t vocab, float best,
                            const SampleRow& row, const Chooser& chooser) {
  const ByLogit by_logit{best, row.temperature};
  const RowChoice<MaskedRow, ByLogit> all(logits, vocab, by_logit, row, chooser);
  const Cut cut = all.best();
  if (!kTypical || row.typical_p == 1) {
    return all.draw_of(cut);
  }
  const CutRow kept{logits, cut.key, all.last_tie(cut)};
  const uint32_t mean = RowChoice<CutRow, ByLogit>(kept, vocab, by_logit, row, chooser).mean();
  const RowChoice<CutRow, ByTypicality> typical(kept, vocab, {best, row.temperature, mean}, row,
                                                chooser);
  return typical.draw_of(typical.likeliest(Cut{}, row.typical_p));
}

}  // namespace tessera::cuda
