#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "eval/lab/head_profile.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Heads that retrieve keep all tokens. They are those with the most attention to repeated tokens
// (echo) and to the tokens behind them (induction) while the model reads repeated random tokens.
// Other heads keep the first and the newest tokens, and a compensation token: the mean key and
// value of the dropped ones, counted as often as there are (RazorAttention, algorithm 1).
class RazorAttention final : public Cloned<RazorAttention> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<RazorAttention>();
    method->echo_ = settings.number("echo", 0.01);
    method->induction_ = settings.number("induction", 0.14);
    method->sinks_ = settings.integer("sinks", 4);
    method->window_ = settings.number("window", 0.2);
    method->period_ = settings.integer("period", 100);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    if (profile_->echo.empty()) *profile_ = measure_heads(model, period_);
    return Method::compute_prompt(model, tokens, cache);
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const Shape& shape = prompt.shape;
    tokens_ = sinks_ + 1 + std::max(1, static_cast<int32_t>(window_ * prompt.size()));
    const std::vector<bool> echo = best_heads(profile_->echo, echo_);
    const std::vector<bool> induction = best_heads(profile_->induction, induction_);
    retrieves_.assign(cache.heads.size(), false);
    for (int32_t head = 0; head < shape.layers * shape.heads; ++head) {
      const auto place = static_cast<size_t>(head);
      if (echo[place] || induction[place]) {
        retrieves_[place / static_cast<size_t>(shape.group())] = true;
      }
    }
    add_all_tokens(prompt, cache);
    for (size_t head = 0; head < cache.heads.size(); ++head) {
      if (!retrieves_[head]) compensate(cache.heads[head]);
    }
    kv_heads_ = shape.kv_heads;
  }

  void after_read(const Read& read, MatrixView<const float> /*weights*/, HeadCache& head) override {
    const auto place = static_cast<size_t>(read.layer * kv_heads_ + read.kv_head);
    if (!retrieves_[place]) compensate(head);
  }

 private:
  // The entry behind the sinks stands for the dropped tokens; its bias is the logarithm of their
  // number. The oldest entries of the window join it.
  void compensate(HeadCache& head) const {
    const int32_t more = head.size() - tokens_;
    if (more <= 0) return;
    const auto place = static_cast<size_t>(sinks_);
    auto count = static_cast<float>(std::lround(std::exp(head.bias[place])));
    for (int32_t entry = sinks_ + 1; entry <= sinks_ + more; ++entry) {
      count += 1;
      for (Rows* rows : {&head.keys, &head.values}) {
        const std::span<float> mean = rows->row(sinks_);
        for (size_t i = 0; i < mean.size(); ++i) mean[i] += (rows->row(entry)[i] - mean[i]) / count;
      }
    }
    head.bias[place] = std::log(count);
    head.positions[place] = head.positions[static_cast<size_t>(sinks_ + more)];
    std::vector<int32_t> kept(static_cast<size_t>(tokens_));
    std::iota(kept.begin(), kept.end(), 0);
    for (auto entry = kept.begin() + sinks_ + 1; entry != kept.end(); ++entry) *entry += more;
    head.keep(kept);
  }

  double echo_ = 0;       // share of the query heads
  double induction_ = 0;  // share of the query heads
  int32_t sinks_ = 0;
  double window_ = 0;  // share of the prompt's tokens
  int32_t period_ = 0;
  int32_t tokens_ = 0;  // of a head that does not retrieve
  int32_t kv_heads_ = 0;
  std::vector<bool> retrieves_;  // [layers * kv_heads]
  // Of all sequences of this method.
  std::shared_ptr<HeadProfile> profile_ = std::make_shared<HeadProfile>();
};

}  // namespace tessera::lab
