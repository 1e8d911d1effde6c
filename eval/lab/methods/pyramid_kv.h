#pragma once

#include <algorithm>
#include <cmath>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "eval/lab/window_scores.h"

namespace tessera::lab {

// Chooses tokens as SnapKV does. Lower layers keep more of them: budgets fall by equal steps from
// the first layer to the last (PyramidKV, section 4.2).
class PyramidKv final : public Cloned<PyramidKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<PyramidKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->beta_ = settings.number("beta", 20);
    method->window_.queries = settings.integer("window", 8);
    method->window_.kernel = settings.integer("kernel", 5);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      const int32_t kept = std::max(0, layer_budget(prompt, layer) - window_.size(prompt));
      add_tokens_and_window(prompt, layer, head,
                            largest(window_scores(prompt, layer, head, window_), kept), window_,
                            cache);
    });
  }

 private:
  // The last layer keeps 1 / beta of the mean budget, and the first one what makes up for it. The
  // first one cannot keep more than there is, so then the last one keeps more. Every budget is at
  // least the window; if one would not be, all layers keep the same.
  int32_t layer_budget(const Prompt& prompt, int32_t layer) const {
    const double mean = budget_ * prompt.size();
    double last = mean / beta_;
    double first = 2 * mean - last;
    if (first >= window_.before(prompt)) {
      first = window_.before(prompt);
      last = 2 * mean - first;
    }
    if (first < last || last < window_.queries) return static_cast<int32_t>(std::nearbyint(mean));
    const double step = (first - last) / std::max(1, prompt.shape.layers - 1);
    return static_cast<int32_t>(std::nearbyint(first - layer * step));
  }

  double budget_ = 0;
  double beta_ = 0;
  ObservationWindow window_;
};

}  // namespace tessera::lab
