#pragma once

#include <algorithm>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "eval/lab/window_scores.h"

namespace tessera::lab {

// Keeps the tokens that the prompt's last queries attend to most, and those last tokens (SnapKV,
// algorithm 1). A score is the mean over the window's queries and over the head's group, after
// pooling over neighbours. Generated tokens are all kept.
class SnapKv final : public Cloned<SnapKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<SnapKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->window_.queries = settings.integer("window", 32);
    method->window_.kernel = settings.integer("kernel", 5);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const int32_t kept =
        std::max(0, static_cast<int32_t>(budget_ * prompt.size()) - window_.size(prompt));
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      add_tokens_and_window(prompt, layer, head,
                            largest(window_scores(prompt, layer, head, window_), kept), window_,
                            cache);
    });
  }

 private:
  double budget_ = 0;
  ObservationWindow window_;
};

}  // namespace tessera::lab
