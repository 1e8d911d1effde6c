#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "eval/lab/attention_sums.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "eval/lab/window_scores.h"

namespace tessera::lab {

// Evicts the tokens of the lowest scores, and merges the next ones into the kept token with the
// most similar key (EMS, section 3). A score is the larger one of the attention from all queries
// and from the last ones, each as a share. A token that is like none of the kept ones belongs to
// the class zero, and is evicted too.
class Ems final : public Cloned<Ems> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Ems>();
    method->budget_ = settings.number("budget", 0.2);
    method->merged_ = settings.number("merged", 2);
    method->threshold_ = settings.number("threshold", 0.6);
    method->window_.queries = settings.integer("window", 32);
    method->window_.kernel = settings.integer("kernel", 5);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const int32_t kept =
        std::max(0, static_cast<int32_t>(budget_ * prompt.size()) - window_.size(prompt));
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      const std::vector<float> scores = global_and_local(prompt, layer, head);
      const std::vector<int32_t> centres = largest(scores, kept);
      add_tokens_and_window(prompt, layer, head, centres, window_, cache);
      std::vector<int32_t> others;
      const auto more = static_cast<int32_t>(merged_ * kept);
      std::ranges::set_difference(largest(scores, kept + more), centres,
                                  std::back_inserter(others));
      const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
      merge(from.keys_of(prompt.shape, head), from.values_of(prompt.shape, head), scores, centres,
            others, cache.at(layer, head));
    });
  }

 private:
  std::vector<float> global_and_local(const Prompt& prompt, int32_t layer, int32_t head) const {
    std::vector<float> scores = window_scores(prompt, layer, head, window_);
    std::vector<float> global = attention_sums(prompt, layer, head);
    global.resize(scores.size());
    const float all = std::reduce(global.begin(), global.end());
    const float local = std::reduce(scores.begin(), scores.end());
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i] = std::max(scores[i] / local, global[i] / all);
    }
    return scores;
  }

  // The centres' rows become means of their classes, weighted by scores.
  void merge(MatrixView<const float> keys, MatrixView<const float> values,
             const std::vector<float>& scores, const std::vector<int32_t>& centres,
             const std::vector<int32_t>& others, HeadCache& head) const {
    std::vector<float> weights;  // of each class so far
    for (const int32_t centre : centres) weights.push_back(scores[static_cast<size_t>(centre)]);
    for (const int32_t token : others) {
      const int32_t nearest = nearest_centre(keys, token, centres);
      if (nearest < 0) continue;
      float& weight = weights[static_cast<size_t>(nearest)];
      weight += scores[static_cast<size_t>(token)];
      const float part = scores[static_cast<size_t>(token)] / weight;
      mix(head.keys.row(nearest), part, keys.row(token));
      mix(head.values.row(nearest), part, values.row(token));
    }
  }

  // Returns: the index of the centre with the most similar key; -1: none is similar.
  int32_t nearest_centre(MatrixView<const float> keys, int32_t token,
                         const std::vector<int32_t>& centres) const {
    int32_t nearest = -1;
    auto most = static_cast<float>(threshold_);
    for (int32_t i = 0; i < static_cast<int32_t>(centres.size()); ++i) {
      const float likeness = cosine(keys.row(token), keys.row(centres[static_cast<size_t>(i)]));
      if (likeness < most) continue;
      most = likeness;
      nearest = i;
    }
    return nearest;
  }

  static void mix(std::span<float> mean, float part, std::span<const float> more) {
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += part * (more[i] - mean[i]);
  }

  double budget_ = 0;
  double merged_ = 0;     // tokens to merge for each kept one
  double threshold_ = 0;  // of the cosine between keys
  ObservationWindow window_;
};

}  // namespace tessera::lab
