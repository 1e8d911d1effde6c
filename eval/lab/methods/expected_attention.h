#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Keeps the tokens that future queries are expected to attend to (Expected Attention, section 3).
// Queries before RoPE count as normally distributed. Their mean and covariance, turned by the
// mean rotation of the next positions, give the expectation of exp(q . k) in closed form. A
// token's share of it is multiplied by the norm of its value.
class ExpectedAttention final : public Cloned<ExpectedAttention> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<ExpectedAttention>();
    method->budget_ = settings.number("budget", 0.2);
    method->future_ = settings.integer("future", 512);
    method->sinks_ = settings.integer("sinks", 4);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    model_ = &model;
    return Method::compute_prompt(model, tokens, cache);
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const int32_t kept = std::max(1, static_cast<int32_t>(budget_ * prompt.size()));
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      add_tokens(prompt, layer, head, largest(scores(prompt, layer, head), kept), cache);
    });
  }

 private:
  // Returns: a head's scores; those of the sinks are the largest.
  std::vector<float> scores(const Prompt& prompt, int32_t layer, int32_t kv_head) const {
    const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
    const Rows turn = mean_rotation(prompt, layer);
    const MatrixView<const float> keys = from.keys_of(prompt.shape, kv_head);
    const MatrixView<const float> values = from.values_of(prompt.shape, kv_head);
    const int32_t sinks = std::min(sinks_, prompt.size());
    std::vector<float> all(prompt.tokens.size(), 0);
    const auto later = std::span(all).subspan(static_cast<size_t>(sinks));
    if (later.empty()) return all;
    for (int32_t i = 0; i < prompt.shape.group(); ++i) {
      add_scaled(later, 1,
                 expected_shares(prompt, layer, kv_head * prompt.shape.group() + i, turn, keys,
                                 from.scale));
    }
    for (int32_t i = sinks; i < prompt.size(); ++i) {
      all[static_cast<size_t>(i)] *= std::sqrt(dot(values.row(i), values.row(i)));
    }
    std::fill_n(all.begin(), sinks, std::numeric_limits<float>::max());
    return all;
  }

  // Returns: softmax of scale * mean . k + scale^2 / 2 * k . covariance k, behind the sinks. The
  // keys are turned instead of the queries: mean and covariance stay as they are before RoPE.
  std::vector<float> expected_shares(const Prompt& prompt, int32_t layer, int32_t head,
                                     const Rows& turn, MatrixView<const float> keys,
                                     float scale) const {
    const int32_t dim = prompt.shape.head_dim;
    const Rows queries = queries_before_rope(prompt, layer, head);
    std::vector<float> mean(static_cast<size_t>(dim));
    const auto share = 1 / static_cast<float>(queries.rows());
    for (int64_t i = 0; i < queries.rows(); ++i) add_scaled(mean, share, queries.row(i));
    Rows covariance(dim, dim);
    for (int64_t i = 0; i < queries.rows(); ++i) {
      std::vector<float> centred(queries.row(i).begin(), queries.row(i).end());
      add_scaled(centred, -1, mean);
      for (int32_t row = 0; row < dim; ++row) {
        add_scaled(covariance.row(row), share * centred[static_cast<size_t>(row)], centred);
      }
    }
    std::vector<float> logits;
    for (int64_t token = sinks_; token < keys.rows; ++token) {
      std::vector<float> key(static_cast<size_t>(dim));  // turned back
      for (int32_t row = 0; row < dim; ++row) {
        key[static_cast<size_t>(row)] = dot(turn.row(row), keys.row(token));
      }
      float variance = 0;
      for (int32_t row = 0; row < dim; ++row) {
        variance += key[static_cast<size_t>(row)] * dot(covariance.row(row), key);
      }
      logits.push_back(scale * dot(mean, key) + scale * scale * variance / 2);
    }
    softmax(logits);
    return logits;
  }

  Rows queries_before_rope(const Prompt& prompt, int32_t layer, int32_t head) const {
    const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
    Rows queries(prompt.shape.head_dim);
    for (int32_t i = sinks_; i < prompt.size(); ++i) {
      queries.add(from.queries_of(prompt.shape, head).row(i));
      model_->rotate_back(layer, i, queries.row(i - sinks_));
    }
    return queries;
  }

  // Returns: the transpose of the mean rotation of the positions behind the prompt. A dimension's
  // angle is that of position 1, as the model's tables may end with its context.
  Rows mean_rotation(const Prompt& prompt, int32_t layer) const {
    const int32_t dim = prompt.shape.head_dim;
    Rows turn(dim, dim);
    for (int32_t i = 0; i < dim; ++i) {
      std::vector<float> unit(static_cast<size_t>(dim));
      unit[static_cast<size_t>(i)] = 1;
      model_->rotate(layer, 1, unit);
      const double cos = std::exchange(unit[static_cast<size_t>(i)], 0);
      const auto partner =
          std::ranges::max_element(unit, {}, [](float element) { return std::fabs(element); });
      const double angle = std::atan2(double{*partner}, cos);
      const double length = std::hypot(double{*partner}, cos) / future_;
      for (int32_t j = 0; j < future_; ++j) {
        const double all = angle * (prompt.size() + j);
        turn.row(i)[static_cast<size_t>(i)] += static_cast<float>(length * std::cos(all));
        turn.row(i)[static_cast<size_t>(partner - unit.begin())] +=
            static_cast<float>(length * std::sin(all));
      }
    }
    return turn;
  }

  Model* model_ = nullptr;
  double budget_ = 0;
  int32_t future_ = 0;
  int32_t sinks_ = 0;
};

}  // namespace tessera::lab
