#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/levels.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Keeps significant tokens in 8 and 4 bits, less significant ones in 4 and 2, and drops the rest,
// as many as each head's attention allows (LeanKV, section 4 and algorithm 1). A token's
// significance is the mean attention that later tokens pay to it. The score of the thresholds is
// the share of all significance that a token and the less significant ones have together.
class LeanKv final : public Cloned<LeanKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<LeanKv>();
    method->high_ = settings.number("high", 0.05);
    method->low_ = settings.number("low", 0.005);
    method->window_ = settings.integer("window", 64);
    method->kv_heads_ = shape.kv_heads;
    method->heads_.resize(static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads));
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    for_each_head(prompt, [&](int32_t layer, int32_t kv_head) {
      std::vector<Token>& tokens = of(layer, kv_head);
      tokens = tokens_of(prompt, layer, kv_head);
      const std::vector<double> scores = scores_of(tokens);
      HeadCache& head = cache.at(layer, kv_head);
      std::vector<int32_t> kept;
      for (int32_t i = 0; i < head.size(); ++i) {
        const bool in_window = i >= head.size() - window_;
        const double score = scores[static_cast<size_t>(i)];
        if (!in_window && score < low_) continue;
        kept.push_back(i);
        store(head, i, tokens[static_cast<size_t>(i)], in_window || score >= high_);
      }
      keep(head, tokens, kept);
    });
  }

  void after_read(const Read& read, MatrixView<const float> weights, HeadCache& head) override {
    std::vector<Token>& tokens = of(read.layer, read.kv_head);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int64_t query = 0; query < weights.rows; ++query) {
        tokens[i].sum += double{weights.row(query)[i]} / static_cast<double>(weights.rows);
      }
      ++tokens[i].queries;
    }
    store(head, head.size() - 1, tokens.emplace_back(), true);
    if (head.size() > window_) compress(head, tokens);
  }

  // Counts codes, a scale and a zero in f16 for each key and value, and for each token its score
  // (f32) and position (int32), as the pages of section 5.2 have them.
  int64_t bytes(const Cache& cache) const override {
    int64_t all = 0;
    for (const std::vector<Token>& tokens : heads_) {
      for (const Token& token : tokens) {
        all += (token.high ? 8 + 4 : 4 + 2) * cache.shape.head_dim / 8 + 4 * 2 + 4 + 4;
      }
    }
    return all;
  }

 private:
  struct Token {
    double sum = 0;  // of attention's probabilities, meaned over the head group
    int32_t queries = 0;
    bool high = true;

    double significance() const { return queries == 0 ? 0 : sum / queries; }
  };

  std::vector<Token>& of(int32_t layer, int32_t kv_head) {
    return heads_[static_cast<size_t>(layer * kv_heads_ + kv_head)];
  }

  static std::vector<Token> tokens_of(const Prompt& prompt, int32_t layer, int32_t kv_head) {
    std::vector<Token> tokens(static_cast<size_t>(prompt.size()));
    const int32_t group = prompt.shape.group();
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for_each_attention_row(prompt, layer, head, 0, prompt.size(),
                             [&](int32_t position, std::span<const float> row) {
                               for (size_t i = 0; i < static_cast<size_t>(position); ++i) {
                                 tokens[i].sum += double{row[i]} / group;
                               }
                             });
    }
    for (int32_t i = 0; i < prompt.size(); ++i) {
      tokens[static_cast<size_t>(i)].queries = prompt.size() - 1 - i;
    }
    return tokens;
  }

  // Returns: the score of each token outside the window; 1 for those in it.
  std::vector<double> scores_of(const std::vector<Token>& tokens) const {
    std::vector<double> scores(tokens.size(), 1);
    const auto outside = static_cast<size_t>(std::max<int64_t>(0, std::ssize(tokens) - window_));
    std::vector<size_t> order(outside);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) { return tokens[i].significance(); });
    const double all =
        std::accumulate(tokens.begin(), tokens.end(), 0.0,
                        [](double sum, const Token& token) { return sum + token.significance(); });
    double sum = 0;
    for (const size_t i : order) {
      sum += tokens[i].significance();
      scores[i] = sum / all;
    }
    return scores;
  }

  static void store(HeadCache& head, int32_t entry, Token& token, bool high) {
    token.high = high;
    round_to_levels(head.keys.row(entry), high ? 8 : 4);
    round_to_levels(head.values.row(entry), high ? 4 : 2);
  }

  static void keep(HeadCache& head, std::vector<Token>& tokens, const std::vector<int32_t>& kept) {
    head.keep(kept);
    for (size_t i = 0; i < kept.size(); ++i) tokens[i] = tokens[static_cast<size_t>(kept[i])];
    tokens.resize(kept.size());
  }

  // Algorithm 1: decides on the token that has left the window, and on one victim.
  void compress(HeadCache& head, std::vector<Token>& tokens) const {
    const auto candidate = static_cast<size_t>(head.size() - window_ - 1);
    const std::vector<double> scores = scores_of(tokens);
    if (scores[candidate] < low_) return drop(head, tokens, candidate);
    const bool high = scores[candidate] >= high_;
    if (!high) store(head, static_cast<int32_t>(candidate), tokens[candidate], false);
    size_t victim = candidate;
    for (size_t i = 0; i <= candidate; ++i) {
      if (tokens[i].high == high && scores[i] < scores[victim]) victim = i;
    }
    if (scores[victim] < low_) return drop(head, tokens, victim);
    if (high && scores[victim] < high_) {
      store(head, static_cast<int32_t>(victim), tokens[victim], false);
    }
  }

  static void drop(HeadCache& head, std::vector<Token>& tokens, size_t dropped) {
    std::vector<int32_t> kept;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i != dropped) kept.push_back(static_cast<int32_t>(i));
    }
    keep(head, tokens, kept);
  }

  double high_ = 0;
  double low_ = 0;
  int32_t window_ = 0;
  int32_t kv_heads_ = 0;
  std::vector<std::vector<Token>> heads_;  // [layers * kv_heads], tokens in order of entries
};

}  // namespace tessera::lab
