#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "eval/lab/window_scores.h"

namespace tessera::lab {

// Chooses tokens as SnapKV does. A layer whose attention is spread over more tokens gets more of
// the budget, and each head its part of that (ZigZagKV, section 4). The measure of a head is the
// number of its best tokens that get 90 % of the window's attention, and that of a layer is the
// mean over its heads. So a head's part of its layer's part is its own measure over the sum of all.
// Every head gets a bound first.
class ZigZagKv final : public Cloned<ZigZagKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<ZigZagKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->bound_ = settings.number("bound", 0.5);
    method->share_ = settings.number("share", 0.9);
    method->window_.queries = settings.integer("window", 32);
    method->window_.kernel = settings.integer("kernel", 5);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const Shape& shape = prompt.shape;
    const std::vector<std::vector<float>> scores = all_window_scores(prompt, window_);
    const ObservationWindow unpooled{window_.queries, 1};
    std::vector<double> sizes;  // of each head
    for (const std::vector<float>& head : all_window_scores(prompt, unpooled)) {
      sizes.push_back(minimum(head));
    }
    const double all = std::max(1.0, std::reduce(sizes.begin(), sizes.end()));
    const double mean = std::max(0.0, budget_ * prompt.size() - window_.size(prompt));
    const double heads = static_cast<double>(sizes.size());
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      const auto place = static_cast<size_t>(layer * shape.kv_heads + head);
      const double kept = mean * (bound_ + (1 - bound_) * heads * sizes[place] / all);
      add_tokens_and_window(prompt, layer, head, largest(scores[place], static_cast<int32_t>(kept)),
                            window_, cache);
    });
  }

 private:
  // Returns: the number of the largest scores whose sum is the share of all.
  double minimum(std::vector<float> scores) const {
    std::sort(scores.begin(), scores.end(), std::greater<>());
    const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
    double sum = 0;
    size_t count = 0;
    while (count < scores.size() && sum < share_ * all) sum += double{scores[count++]};
    return static_cast<double>(count);
  }

  double budget_ = 0;
  double bound_ = 0;  // share of the budget that is the same for all heads
  double share_ = 0;  // of attention
  ObservationWindow window_;
};

}  // namespace tessera::lab
