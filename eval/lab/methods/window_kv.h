#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "eval/lab/window_scores.h"

namespace tessera::lab {

// Keeps windows of consecutive tokens that the prompt's last queries attend to, the same ones in
// all heads and in all layers of a group. Budgets fall from group to group (WindowKV, section 3).
// A window's score is the mean of its better half, for tasks that find information, or the mean
// of all its tokens, for tasks that gather it.
class WindowKv final : public Cloned<WindowKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<WindowKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->gathers_ = settings.integer("gathers", 0) != 0;
    method->suffix_.queries = settings.integer("suffix", method->gathers_ ? 16 : 32);
    method->window_ = settings.integer("window", 8);
    method->shared_ = settings.integer("shared", 8);
    method->beta_ = settings.integer("beta", 14);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const Shape& shape = prompt.shape;
    for (int32_t first = 0; first < shape.layers; first += shared_) {
      const std::vector<int32_t> positions = choose_windows(prompt, first);
      for (int32_t layer = first; layer < std::min(first + shared_, shape.layers); ++layer) {
        for (int32_t head = 0; head < shape.kv_heads; ++head) {
          add_tokens_and_window(prompt, layer, head, positions, suffix_, cache);
        }
      }
    }
  }

 private:
  // Tokens before the suffix that each layer of a group keeps: equal steps from the first group to
  // the last, with the budget as mean.
  int32_t group_budget(const Prompt& prompt, int32_t group) const {
    const auto mean =
        std::max(0, static_cast<int32_t>(budget_ * prompt.size()) - suffix_.size(prompt));
    const int32_t groups = (prompt.shape.layers + shared_ - 1) / shared_;
    if (groups == 1) return mean;
    const int32_t last = std::min(mean, mean * shared_ / beta_);
    const int32_t first = 2 * mean - last;
    return group == groups - 1 ? last : first - group * ((first - last) / (groups - 1));
  }

  // Returns: the chosen tokens before the suffix, ascending.
  std::vector<int32_t> choose_windows(const Prompt& prompt, int32_t layer) const {
    const int32_t before = suffix_.before(prompt);
    const int32_t windows = (before + window_ - 1) / window_;
    std::vector<std::vector<float>> sums(static_cast<size_t>(prompt.shape.heads));
    for (int32_t head = 0; head < prompt.shape.heads; ++head) {
      sums[static_cast<size_t>(head)] = window_sums(prompt, layer, head, suffix_);
    }
    std::vector<float> scores(static_cast<size_t>(windows));
    for (int32_t window = 0; window < windows; ++window) {
      for (const std::vector<float>& head : sums) {
        const auto end = std::min(head.end(), head.begin() + (window + 1) * window_);
        scores[static_cast<size_t>(window)] += score_of({head.begin() + window * window_, end});
      }
    }
    const int32_t over = std::max(0, before - group_budget(prompt, layer / shared_));
    std::vector<int32_t> positions;
    for (const int32_t window : largest(scores, windows - (over + window_ - 1) / window_)) {
      for (int32_t i = window * window_; i < std::min(before, (window + 1) * window_); ++i) {
        positions.push_back(i);
      }
    }
    return positions;
  }

  // A shorter last window counts by its own tokens.
  float score_of(std::vector<float> tokens) const {
    std::sort(tokens.begin(), tokens.end(), std::greater<>());
    const size_t half = std::max<size_t>(1, static_cast<size_t>(window_ / 2));
    if (!gathers_) tokens.resize(std::min(tokens.size(), half));
    float sum = 0;
    for (const float token : tokens) sum += token;
    return sum / static_cast<float>(tokens.size());
  }

  double budget_ = 0;
  bool gathers_ = false;
  ObservationWindow suffix_;
  int32_t window_ = 0;
  int32_t shared_ = 0;  // layers of a group
  int32_t beta_ = 0;
};

}  // namespace tessera::lab
