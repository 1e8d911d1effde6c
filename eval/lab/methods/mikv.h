#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/attention_sums.h"
#include "eval/lab/levels.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Keeps the tokens that H2O keeps in f16, and holds those that it evicts in few bits, token by
// token. Channels of keys are balanced against those of queries before they are rounded (MiKV,
// section 3).
class Mikv final : public Cloned<Mikv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<Mikv>();
    method->important_ = settings.number("important", 0.2);
    method->bits_ = settings.integer("bits", 2);
    method->group_ = settings.integer("group", std::max(1, shape.head_dim / 2));
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    kept_ = std::max(1, static_cast<int32_t>(important_ * prompt.size()));
    kv_heads_ = prompt.shape.kv_heads;
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      for (int32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        Tokens& tokens = tokens_.emplace_back();
        tokens.scores = attention_sums(prompt, layer, kv_head);
        tokens.balance = balance(prompt, layer, kv_head);
        for (int32_t i = 0; i < prompt.size(); ++i) tokens.important.push_back(i);
        demote(tokens, cache.at(layer, kv_head));
      }
    }
  }

  void after_read(const Read& read, MatrixView<const float> weights, HeadCache& head) override {
    Tokens& tokens = tokens_[static_cast<size_t>(read.layer * kv_heads_ + read.kv_head)];
    tokens.scores.push_back(0);
    tokens.important.push_back(head.size() - 1);
    for (int64_t i = 0; i < weights.rows; ++i) add_scaled(tokens.scores, 1, weights.row(i));
    demote(tokens, head);
  }

  // Counts important tokens in f16, levels, least number and step of groups, a score in f32 and a
  // bit of importance for each token, and a balance of each channel in f16.
  int64_t bytes(const Cache& cache) const override {
    const int64_t width = cache.shape.head_dim;
    const int64_t important = std::min(kept_, cache.tokens);
    const int64_t low = cache.tokens - important;
    const int64_t of_head = 2 * (important * width * kHalfBytes + packed_bytes(low * width, bits_) +
                                 low * div_ceil(width, group_) * kGroupBytes) +
                            cache.tokens * int64_t{sizeof(float)} + packed_bytes(cache.tokens, 1) +
                            width * kHalfBytes;
    return std::ssize(cache.heads) * of_head;
  }

 private:
  struct Tokens {
    std::vector<float> scores;       // sums of attention
    std::vector<int32_t> important;  // entries, ascending
    std::vector<float> balance;      // of the channels of keys
  };

  // Returns: factors of a head's channels that give keys and queries equal maxima.
  static std::vector<float> balance(const Prompt& prompt, int32_t layer, int32_t kv_head) {
    const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
    const Shape& shape = prompt.shape;
    const auto most = [&](MatrixView<const float> rows, std::vector<float>& sizes) {
      for (int64_t i = 0; i < rows.rows; ++i) {
        for (size_t c = 0; c < sizes.size(); ++c) {
          sizes[c] = std::max(sizes[c], std::fabs(rows.row(i)[c]));
        }
      }
    };
    std::vector<float> of_queries(static_cast<size_t>(shape.head_dim));
    std::vector<float> of_keys(of_queries.size());
    for (int32_t i = 0; i < shape.group(); ++i) {
      most(from.queries_of(shape, kv_head * shape.group() + i), of_queries);
    }
    most(from.keys_of(shape, kv_head), of_keys);
    for (size_t c = 0; c < of_keys.size(); ++c) {
      const bool some = of_queries[c] > 0 && of_keys[c] > 0;
      of_keys[c] = some ? std::sqrt(of_queries[c] / of_keys[c]) : 1;
    }
    return of_keys;
  }

  // Rounds the least important tokens, so that the others are as many as may be. Half of those are
  // the newest ones.
  void demote(Tokens& tokens, HeadCache& head) const {
    const auto newest = static_cast<std::ptrdiff_t>(kept_ / 2);
    while (std::ssize(tokens.important) > kept_) {
      const auto end = tokens.important.end() - newest;
      auto worst = tokens.important.begin();
      for (auto at = worst; at != end; ++at) {
        const auto score = [&](int32_t entry) { return tokens.scores[static_cast<size_t>(entry)]; };
        if (score(*at) <= score(*worst)) worst = at;
      }
      round_token(tokens.balance, head.keys.row(*worst), head.values.row(*worst));
      tokens.important.erase(worst);
    }
  }

  void round_token(const std::vector<float>& balance, std::span<float> key,
                   std::span<float> value) const {
    for (size_t c = 0; c < key.size(); ++c) key[c] *= balance[c];
    for (const std::span<float> row : {key, value}) {
      const auto size = std::ssize(row);
      round_tokens(MatrixView<float>{row.data(), 1, size, size}, group_, bits_);
    }
    for (size_t c = 0; c < key.size(); ++c) key[c] /= balance[c];
  }

  double important_ = 0;  // share of the prompt's tokens
  int bits_ = 0;
  int32_t group_ = 0;  // channels
  int32_t kept_ = 0;   // important tokens
  int32_t kv_heads_ = 0;
  std::vector<Tokens> tokens_;  // of each head
};

}  // namespace tessera::lab
