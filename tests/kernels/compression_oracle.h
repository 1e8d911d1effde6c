#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace tessera {

// Expected decisions of kv_compress, by brute force from the words of the papers: one list of
// tokens for a row, loops over all of them, no cutoffs. Shares no code with the op.
struct OracleToken {
  int32_t position = 0;
  float score = 0;
  bool low = false;     // tier
  bool pinned = false;  // in a page with several owners
  bool dropped = false;
};
using OracleRow = std::vector<OracleToken>;  // the open group's tokens included

class CompressionOracle {
 public:
  // rows: all rows of the sequence, layer by layer; not owned.
  // profiles: [layers, heads], for allocators that read them.
  CompressionOracle(const KvCompression& sequence, int32_t layers, int32_t heads,
                    int32_t high_capacity, std::vector<HeadProfile> profiles)
      : sequence_(sequence),
        policy_(sequence.policy),
        layers_(layers),
        heads_(heads),
        high_capacity_(high_capacity),
        profiles_(std::move(profiles)) {}

  void run(std::vector<OracleRow>& rows) const {
    switch (policy_.rule()) {
      case KvRule::thresholds:
        for (OracleRow& row : rows) {
          by_thresholds(row);
        }
        break;
      case KvRule::mass:
        for (OracleRow& row : rows) {
          by_mass(row);
        }
        break;
      default: {
        const std::vector<int32_t> budgets = spread(rows);
        for (size_t i = 0; i < rows.size(); ++i) {
          by_budget(rows[i], budgets[i]);
        }
      }
    }
  }

  double significance(const OracleToken& token) const {
    if (policy_.scorer != KvScorer::mean) {
      return token.score;
    }
    int32_t later = 0;
    const int32_t first =
        policy_.score_window == 0 ? 0 : std::max(0, sequence_.prompt_tokens - policy_.score_window);
    for (int32_t q = std::max(first, token.position + 1); q < sequence_.tokens; ++q) {
      later += policy_.compress_generated || q < sequence_.prompt_tokens ? 1 : 0;
    }
    return later > 0 ? token.score / static_cast<float>(later) : 0.0f;
  }
  bool is_recent(const OracleToken& token) const {
    return token.position / kKvGroup >= sequence_.tokens / kKvGroup - policy_.recent;
  }
  bool is_protected(const OracleToken& token) const {
    return token.position < policy_.sinks || is_recent(token) || token.pinned;
  }
  bool is_fresh(const OracleToken& token) const {
    return !is_protected(token) && token.position >= sequence_.evaluated;
  }
  int32_t mean_budget() const {
    const KvAmount amount = policy_.budget().amount;
    const double tokens =
        amount.is_share() ? std::ceil(double{amount.share()} * sequence_.tokens) : amount.tokens();
    return static_cast<int32_t>(std::min<double>(tokens, sequence_.tokens));
  }

 private:
  using Rank = std::tuple<double, int32_t>;  // higher is better; as TokenKey
  Rank rank(const OracleToken& token) const { return {significance(token), token.position}; }

  double total(const OracleRow& row) const {
    if (policy_.scorer == KvScorer::mean) {
      return 1;
    }
    double sum = 0;
    for (const OracleToken& token : row) {
      sum += token.score;
    }
    return sum;
  }

  // Algorithm 1, candidate by candidate.
  void by_thresholds(OracleRow& row) const {
    const double prefix_block = total(row) / sequence_.tokens;
    const auto low = static_cast<float>(policy_.thresholds().alpha_low * prefix_block);
    const auto high = policy_.high == policy_.low
                          ? low
                          : static_cast<float>(policy_.thresholds().alpha_high * prefix_block);
    std::vector<OracleToken*> candidates;
    std::vector<OracleToken*> tier[2];  // KV_h and KV_l, without tokens that no rule touches
    for (OracleToken& token : row) {
      if (is_fresh(token)) {
        candidates.push_back(&token);
      } else if (!is_protected(token)) {
        tier[token.low ? 1 : 0].push_back(&token);
      }
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const auto* a, const auto* b) { return a->position < b->position; });
    const auto min = [&](std::vector<OracleToken*>& tokens) {
      return std::min_element(tokens.begin(), tokens.end(),
                              [&](const auto* a, const auto* b) { return rank(*a) < rank(*b); });
    };
    for (OracleToken* candidate : candidates) {
      const double score = significance(*candidate);
      if (score >= high) {
        tier[0].push_back(candidate);
        const auto victim = min(tier[0]);
        const double victim_score = significance(**victim);
        if (victim_score >= high) {
          continue;
        }
        (victim_score >= low ? (*victim)->low : (*victim)->dropped) = true;
        if ((*victim)->low) {
          tier[1].push_back(*victim);
        }
        tier[0].erase(victim);
      } else if (score >= low) {
        candidate->low = true;
        tier[1].push_back(candidate);
        const auto victim = min(tier[1]);
        if (significance(**victim) < low) {
          (*victim)->dropped = true;
          tier[1].erase(victim);
        }
      } else {
        candidate->dropped = true;
      }
    }
  }

  void by_mass(OracleRow& row) const {
    std::vector<OracleToken*> fresh;
    double mass = 0;
    for (OracleToken& token : row) {
      if (is_fresh(token)) {
        fresh.push_back(&token);
        mass += significance(token);
      }
    }
    if (sequence_.evaluated == 0) {
      mass = total(row);
    }
    std::sort(fresh.begin(), fresh.end(),
              [&](const auto* a, const auto* b) { return rank(*a) < rank(*b); });
    const double may_drop = (1.0 - double{policy_.mass().mass_keep}) * mass;
    const double may_lower =
        policy_.high == policy_.low ? may_drop : (1.0 - double{policy_.mass().mass_high}) * mass;
    double gone = 0;
    for (OracleToken* token : fresh) {
      gone += significance(*token);
      if (gone <= may_drop && may_drop > 0) {
        token->dropped = true;
      } else if (gone <= may_lower && may_lower > 0) {
        token->low = true;
      }
    }
  }

  void by_budget(OracleRow& row, int32_t budget) const {
    std::vector<OracleToken*> own;
    for (OracleToken& token : row) {
      if (!is_protected(token)) {
        own.push_back(&token);
      }
    }
    std::sort(own.begin(), own.end(),
              [&](const auto* a, const auto* b) { return rank(*a) > rank(*b); });
    const int64_t anyway = std::ssize(row) - std::ssize(own);
    const int64_t keep = std::max<int64_t>(budget - anyway, 0);
    const int64_t high =
        policy_.high == policy_.low
            ? keep
            : std::max<int64_t>(std::llround(double{policy_.budget().high_share} * budget) - anyway,
                                0);
    for (int64_t i = 0; i < std::ssize(own); ++i) {
      OracleToken& token = *own[static_cast<size_t>(i)];
      token.dropped = i >= keep;
      token.low = token.low || (i >= high && i < keep);
    }
  }

  std::vector<int32_t> spread(const std::vector<OracleRow>& rows) const {
    const int32_t mean = mean_budget();
    std::vector<int32_t> budgets(rows.size(), mean);
    switch (policy_.budget().allocator) {
      case KvAllocator::uniform:
        break;
      case KvAllocator::pages:
        spread_pages(rows, mean, budgets);
        break;
      case KvAllocator::retrieval:
        for (size_t i = 0; i < rows.size(); ++i) {
          const bool keeps_all = profiles_[i].place < policy_.budget().retrieval_share;
          budgets[i] = keeps_all ? sequence_.tokens : mean;
        }
    }
    return budgets;
  }

  // Page by page: evicts from the row whose next page has the worst best token.
  void spread_pages(const std::vector<OracleRow>& rows, int32_t mean,
                    std::vector<int32_t>& budgets) const {
    const int32_t open = sequence_.tokens % kKvGroup;
    std::vector<std::vector<Rank>> own(rows.size());  // ascending
    std::vector<int64_t> closed(rows.size());
    int64_t pages = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      closed[row] = std::ssize(rows[row]) - open;
      pages += div_ceil(closed[row], high_capacity_);
      for (const OracleToken& token : rows[row]) {
        if (!is_protected(token)) {
          own[row].push_back(rank(token));
        }
      }
      std::sort(own[row].begin(), own[row].end());
    }
    const int64_t allowed = std::ssize(rows) * (std::max(mean - open, 0) / high_capacity_);
    std::vector<size_t> gone(rows.size());
    for (; pages > allowed; --pages) {
      size_t best = rows.size();
      Rank worst;
      for (size_t row = 0; row < rows.size(); ++row) {
        const size_t next = gone[row] + next_page(row, gone, closed);
        if (next <= own[row].size() && (best == rows.size() || own[row][next - 1] < worst)) {
          best = row;
          worst = own[row][next - 1];
        }
      }
      if (best == rows.size()) {
        break;
      }
      gone[best] += next_page(best, gone, closed);
    }
    for (size_t row = 0; row < rows.size(); ++row) {
      budgets[row] = static_cast<int32_t>(closed[row] - static_cast<int64_t>(gone[row])) + open;
    }
  }
  // Returns: number of tokens to remove until the row's last page is empty.
  size_t next_page(size_t row, const std::vector<size_t>& gone,
                   const std::vector<int64_t>& closed) const {
    const int64_t left = closed[row] - static_cast<int64_t>(gone[row]);
    return static_cast<size_t>(left == 0 ? int64_t{1} << 30 : (left - 1) % high_capacity_ + 1);
  }

  const KvCompression& sequence_;
  const KvPolicy& policy_;
  int32_t layers_;
  int32_t heads_;
  int32_t high_capacity_;
  std::vector<HeadProfile> profiles_;
};

}  // namespace tessera
