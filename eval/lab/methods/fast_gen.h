#pragma once

#include <algorithm>
#include <cctype>
#include <span>
#include <string>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "text/tokenizer.h"

namespace tessera::lab {

// Chooses for each head the cheapest of five policies that keeps a share of its attention
// (FastGen, algorithms 1 and 2): special tokens; punctuation too; the tokens with the largest sums
// of attention too; the newest tokens too; or all. The policy holds while tokens are generated.
class FastGen final : public Cloned<FastGen> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<FastGen>();
    method->recovery_ = settings.number("recovery", 0.95);
    method->frequent_ = settings.number("frequent", 0.3);
    method->local_ = settings.number("local", 0.3);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    tokenizer_ = model.tokenizer;
    return Method::compute_prompt(model, tokens, cache);
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    kv_heads_ = prompt.shape.kv_heads;
    heads_.assign(cache.heads.size(), {});
    add_all_tokens(prompt, cache);
    std::vector<Kind> kinds;
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
      kinds.push_back(i == 0 ? Kind::kSpecial : kind_of(prompt.tokens[i]));
    }
    for_each_head(prompt, [&](int32_t layer, int32_t kv_head) {
      Head& head = heads_[place(layer, kv_head)];
      head.kinds = kinds;
      choose_policy(prompt, layer, kv_head, head);
      apply(head, prompt.size(), cache.at(layer, kv_head));
    });
  }

  void after_read(const Read& read, MatrixView<const float> weights, HeadCache& entries) override {
    Head& head = heads_[place(read.layer, read.kv_head)];
    head.kinds.push_back(kind_of(read.token));
    head.sums.push_back(0);
    for (int64_t i = 0; i < weights.rows; ++i) add_scaled(head.sums, 1, weights.row(i));
    apply(head, read.position + 1, entries);
  }

  // Counts the sums of the heads that rank by them.
  int64_t bytes(const Cache& cache) const override {
    int64_t all = Method::bytes(cache);
    for (const Head& head : heads_) {
      const bool ranks = head.policy == Policy::kFrequent || head.policy == Policy::kLocal;
      if (ranks) all += std::ssize(head.sums) * int64_t{sizeof(float)};
    }
    return all;
  }

 private:
  enum class Kind : uint8_t { kOther, kPunctuation, kSpecial };
  enum class Policy : uint8_t {
    kSpecial,
    kPunctuation,
    kFrequent,
    kLocal,
    kAll
  };  // the cheapest first

  struct Head {
    Policy policy = Policy::kAll;
    std::vector<Kind> kinds;  // of entries
    std::vector<float> sums;  // of attention, of entries
  };

  size_t place(int32_t layer, int32_t head) const {
    return static_cast<size_t>(layer * kv_heads_ + head);
  }

  // A token of punctuation has no other characters than punctuation and spaces, at least one.
  Kind kind_of(int32_t token) const {
    if (tokenizer_ == nullptr) return Kind::kOther;
    if (tokenizer_->is_special(token)) return Kind::kSpecial;
    bool some = false;
    for (const char character : tokenizer_->token_bytes(token)) {
      const auto byte = static_cast<unsigned char>(character);
      if (std::ispunct(byte) == 0 && std::isspace(byte) == 0) return Kind::kOther;
      some = some || std::ispunct(byte) != 0;
    }
    return some ? Kind::kPunctuation : Kind::kOther;
  }

  // Attention over a set of tokens is the sum over its columns, so one pass suffices.
  void choose_policy(const Prompt& prompt, int32_t layer, int32_t kv_head, Head& head) const {
    head.sums.assign(prompt.tokens.size(), 0);
    std::vector<float> near(prompt.tokens.size());  // from queries whose local window has the token
    for_each_group_row(prompt, layer, kv_head, 0, prompt.size(),
                       [&](int32_t position, MatrixView<const float> weights) {
                         const auto count = static_cast<size_t>(position + 1);
                         const size_t first = count - share(local_, position + 1);
                         for (int64_t i = 0; i < weights.rows; ++i) {
                           const std::span<const float> row = weights.row(i);
                           add_scaled(std::span(head.sums).first(count), 1, row);
                           add_scaled(std::span(near).subspan(first, count - first), 1,
                                      row.subspan(first));
                         }
                       });
    const double all = static_cast<double>(prompt.size()) * prompt.shape.group();
    for (const Policy policy : {Policy::kSpecial, Policy::kPunctuation, Policy::kFrequent}) {
      head.policy = policy;
      const std::vector<bool> stays = stay(head, prompt.size());
      double kept = 0;
      double kept_or_near = 0;
      for (size_t i = 0; i < stays.size(); ++i) {
        kept += stays[i] ? double{head.sums[i]} : 0;
        kept_or_near += double{stays[i] ? head.sums[i] : near[i]};
      }
      if (kept >= recovery_ * all) return;
      if (policy != Policy::kFrequent) continue;
      head.policy = kept_or_near >= recovery_ * all ? Policy::kLocal : Policy::kAll;
    }
  }

  static size_t share(double of, int32_t tokens) { return static_cast<size_t>(of * tokens); }

  // Returns: the entries that stay without regard to their age.
  std::vector<bool> stay(const Head& head, int32_t tokens) const {
    std::vector<bool> stays(head.kinds.size());
    for (size_t i = 0; i < stays.size(); ++i) {
      stays[i] = head.kinds[i] == Kind::kSpecial ||
                 (head.policy != Policy::kSpecial && head.kinds[i] == Kind::kPunctuation);
    }
    if (head.policy == Policy::kFrequent || head.policy == Policy::kLocal) {
      for (const int32_t i : largest(head.sums, static_cast<int32_t>(share(frequent_, tokens)))) {
        stays[static_cast<size_t>(i)] = true;
      }
    }
    return stays;
  }

  void apply(Head& head, int32_t tokens, HeadCache& entries) const {
    if (head.policy == Policy::kAll) return;
    const std::vector<bool> stays = stay(head, tokens);
    const auto window =
        head.policy == Policy::kLocal ? static_cast<int32_t>(share(local_, tokens)) : 0;
    std::vector<int32_t> kept;
    for (int32_t i = 0; i < entries.size(); ++i) {
      const auto at = static_cast<size_t>(i);
      if (!stays[at] && entries.positions[at] < tokens - window) continue;
      head.kinds[kept.size()] = head.kinds[at];
      head.sums[kept.size()] = head.sums[at];
      kept.push_back(i);
    }
    head.kinds.resize(kept.size());
    head.sums.resize(kept.size());
    entries.keep(kept);
  }

  double recovery_ = 0;  // share of attention
  double frequent_ = 0;  // share of the tokens so far
  double local_ = 0;     // share of the tokens so far
  int32_t kv_heads_ = 0;
  const Tokenizer* tokenizer_ = nullptr;
  std::vector<Head> heads_;
};

}  // namespace tessera::lab
