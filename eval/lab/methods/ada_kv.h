#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "eval/lab/window_scores.h"

namespace tessera::lab {

// Scores tokens as SnapKV does. The heads of a layer share one budget, which goes to the largest
// scores of all of them; each head keeps a safe share of its part (Ada-KV, algorithm 1).
class AdaKv final : public Cloned<AdaKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<AdaKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->safeguard_ = settings.number("safeguard", 0.2);
    method->window_.queries = settings.integer("window", 32);
    method->window_.kernel = settings.integer("kernel", 5);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const int32_t kv_heads = prompt.shape.kv_heads;
    const auto tokens = static_cast<int32_t>(budget_ * prompt.size());
    const int32_t window = window_.size(prompt);
    const int32_t safe = std::max(1, static_cast<int32_t>(tokens * safeguard_)) - window;
    const std::vector<std::vector<float>> scores = all_window_scores(prompt, window_);
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      std::vector<float> layer_scores;
      for (int32_t head = 0; head < kv_heads; ++head) {
        const std::vector<float>& own = scores[static_cast<size_t>(layer * kv_heads + head)];
        std::vector<float> raised = own;
        for (const int32_t token : largest(own, safe)) {
          raised[static_cast<size_t>(token)] = std::numeric_limits<float>::max();
        }
        layer_scores.insert(layer_scores.end(), raised.begin(), raised.end());
      }
      add_layer(prompt, layer, largest(layer_scores, kv_heads * (tokens - window)), cache);
    }
  }

 private:
  // kept: ascending places in the scores of all heads, one head behind the other
  void add_layer(const Prompt& prompt, int32_t layer, const std::vector<int32_t>& kept,
                 Cache& cache) const {
    const int32_t before = window_.before(prompt);
    std::vector<std::vector<int32_t>> positions(static_cast<size_t>(prompt.shape.kv_heads));
    for (const int32_t place : kept) {
      positions[static_cast<size_t>(place / before)].push_back(place % before);
    }
    for (int32_t head = 0; head < prompt.shape.kv_heads; ++head) {
      add_tokens_and_window(prompt, layer, head, positions[static_cast<size_t>(head)], window_,
                            cache);
    }
  }

  double budget_ = 0;
  double safeguard_ = 0;  // share of a head's mean budget that it keeps in any case
  ObservationWindow window_;
};

}  // namespace tessera::lab
