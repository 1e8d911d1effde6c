#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Keeps the tokens that the prompt's last queries attend to most, and those last tokens (SnapKV,
// algorithm 1). A score is the mean over the window's queries and over the head's group, after
// pooling over neighbours. Generated tokens are all kept.
class SnapKv final : public Cloned<SnapKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<SnapKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->window_ = settings.integer("window", 32);
    method->kernel_ = settings.integer("kernel", 5);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const int32_t window = std::min(window_, prompt.size());
    const int32_t before = prompt.size() - window;
    const int32_t kept = std::max(0, static_cast<int32_t>(budget_ * prompt.size()) - window);
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      for (int32_t head = 0; head < prompt.shape.kv_heads; ++head) {
        std::vector<int32_t> positions = largest(scores(prompt, layer, head, before), kept);
        positions.resize(positions.size() + static_cast<size_t>(window));
        std::iota(positions.end() - window, positions.end(), before);
        add_tokens(prompt, layer, head, positions, cache);
      }
    }
  }

 private:
  // Returns: scores of the tokens before the window.
  std::vector<float> scores(const Prompt& prompt, int32_t layer, int32_t kv_head,
                            int32_t before) const {
    std::vector<float> all(static_cast<size_t>(before));
    const int32_t group = prompt.shape.group();
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      std::vector<float> sums(all.size());
      for_each_attention_row(prompt, layer, head, before, prompt.size(),
                             [&](int32_t, std::span<const float> row) {
                               add_scaled(sums, 1, row.first(sums.size()));
                             });
      add_scaled(all, 1, mean_pool(sums, kernel_));
    }
    return all;
  }

  double budget_ = 0;
  int32_t window_ = 0;
  int32_t kernel_ = 0;
};

}  // namespace tessera::lab
