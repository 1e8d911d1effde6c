#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/head_profile.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "eval/lab/window_scores.h"

namespace tessera::lab {

// The four heads of a layer that retrieve by meaning choose the tokens of all its heads, from the
// attention of the prompt's last queries. A layer with a larger error of eviction gets more of the
// budget (CompressKV, section 3).
class CompressKv final : public Cloned<CompressKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<CompressKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->heads_ = settings.integer("heads", 4);
    method->least_ = settings.integer("least", 32);
    method->window_.queries = settings.integer("window", 8);
    method->window_.kernel = settings.integer("kernel", 5);
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
    std::vector<std::vector<float>> scores(static_cast<size_t>(shape.layers));
    std::vector<double> errors;
    const auto mean = static_cast<int32_t>(budget_ * prompt.size());
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      std::vector<float>& own = scores[static_cast<size_t>(layer)];
      own = layer_scores(prompt, layer);
      errors.push_back(error_of(prompt, layer, largest(own, mean - window_.size(prompt))));
    }
    const std::vector<int32_t> budgets = layer_budgets(errors, mean, prompt.size());
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      const auto place = static_cast<size_t>(layer);
      const std::vector<int32_t> kept =
          largest(scores[place], budgets[place] - window_.size(prompt));
      add_tokens_and_window(prompt, layer, head, kept, window_, cache);
    });
  }

 private:
  std::vector<float> layer_scores(const Prompt& prompt, int32_t layer) const {
    const int32_t heads = prompt.shape.heads;
    const auto first = profile_->around.begin() + int64_t{layer} * heads;
    std::vector<float> all(static_cast<size_t>(window_.before(prompt)));
    for (const int32_t head : largest(std::vector<float>(first, first + heads), heads_)) {
      add_scaled(all, 1, mean_pool(window_sums(prompt, layer, head, window_), window_.kernel));
    }
    return all;
  }

  // Returns: the norm of what eviction changes in the window's attention outputs, over their norm.
  double error_of(const Prompt& prompt, int32_t layer, const std::vector<int32_t>& kept) const {
    const Shape& shape = prompt.shape;
    const int32_t before = window_.before(prompt);
    std::vector<bool> stays(prompt.tokens.size(), true);
    std::fill_n(stays.begin(), before, false);
    for (const int32_t token : kept) stays[static_cast<size_t>(token)] = true;
    double change = 0;
    double whole = 0;
    for (int32_t head = 0; head < shape.heads; ++head) {
      const MatrixView<const float> values =
          prompt.layers[static_cast<size_t>(layer)].values_of(shape, head / shape.group());
      for_each_attention_row(prompt, layer, head, before, prompt.size(),
                             [&](int32_t, std::span<const float> row) {
                               std::vector<float> all(static_cast<size_t>(shape.head_dim));
                               std::vector<float> rest = all;
                               float mass = 0;
                               for (size_t i = 0; i < row.size(); ++i) {
                                 add_scaled(all, row[i], values.row(static_cast<int64_t>(i)));
                                 if (!stays[i]) continue;
                                 add_scaled(rest, row[i], values.row(static_cast<int64_t>(i)));
                                 mass += row[i];
                               }
                               whole += double{dot(all, all)};
                               add_scaled(all, -1 / mass, rest);
                               change += double{dot(all, all)};
                             });
    }
    return std::sqrt(change / whole);
  }

  // The least budget for each layer, and the rest by the shares of the errors, at most three times
  // the mean. What rounding and the bounds leave goes token by token to the layers in the order of
  // their errors, or is taken from them in the reverse order.
  std::vector<int32_t> layer_budgets(const std::vector<double>& errors, int32_t mean,
                                     int32_t tokens) const {
    const auto layers = static_cast<int32_t>(errors.size());
    const int32_t most = std::min(3 * mean, tokens);
    const int32_t least = std::min(least_, mean);
    const double all = std::reduce(errors.begin(), errors.end());
    std::vector<int32_t> budgets;
    for (const double error : errors) {
      const double share = all > 0 ? error / all : 1.0 / layers;
      const double extra = std::nearbyint(share * layers * (mean - least));
      budgets.push_back(std::clamp(least + static_cast<int32_t>(extra), least, most));
    }
    std::vector<int32_t> order(errors.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return errors[static_cast<size_t>(a)] > errors[static_cast<size_t>(b)];
    });
    int32_t left = layers * mean - std::reduce(budgets.begin(), budgets.end());
    if (left < 0) std::reverse(order.begin(), order.end());
    for (size_t i = 0; left != 0; i = (i + 1) % order.size()) {
      int32_t& budget = budgets[static_cast<size_t>(order[i])];
      const int32_t step = left > 0 ? 1 : -1;
      if (budget + step < least || budget + step > most) continue;
      budget += step;
      left -= step;
    }
    return budgets;
  }

  double budget_ = 0;
  int32_t heads_ = 0;  // of a layer, that choose its tokens
  int32_t least_ = 0;  // tokens of a layer
  int32_t period_ = 0;
  ObservationWindow window_;
  // Of all sequences of this method.
  std::shared_ptr<HeadProfile> profile_ = std::make_shared<HeadProfile>();
};

}  // namespace tessera::lab
