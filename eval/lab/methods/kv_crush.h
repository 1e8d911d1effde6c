#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "eval/lab/window_scores.h"

namespace tessera::lab {

// Spends part of a budget on tokens that stand for the dropped ones (KVCrush, section 3). A token's
// pattern has a bit for each query head of the layer: 1 if that head alone would keep it. The
// tokens that SnapKV would drop are ordered by the distance of their patterns from an anchor, and
// one token of each of equal parts of that order stays.
class KvCrush final : public Cloned<KvCrush> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<KvCrush>();
    method->budget_ = settings.number("budget", 0.2);
    method->share_ = settings.number("share", 0.25);
    method->window_.queries = settings.integer("window", 32);
    method->window_.kernel = settings.integer("kernel", 5);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const int32_t all =
        std::max(0, static_cast<int32_t>(budget_ * prompt.size()) - window_.size(prompt));
    const auto parts = static_cast<int32_t>(share_ * all);
    const std::vector<std::vector<float>> scores = all_window_scores(prompt, window_);
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      const std::vector<float> distances = anchor_distances(prompt, layer, all);
      for (int32_t head = 0; head < prompt.shape.kv_heads; ++head) {
        const auto place = static_cast<size_t>(layer * prompt.shape.kv_heads + head);
        std::vector<int32_t> kept = largest(scores[place], all - parts);
        const std::vector<int32_t> others = representatives(distances, kept, parts);
        kept.insert(kept.end(), others.begin(), others.end());
        std::sort(kept.begin(), kept.end());
        add_tokens_and_window(prompt, layer, head, kept, window_, cache);
      }
    }
  }

 private:
  // Returns: each token's Hamming distance from the anchor, whose bits are those of most tokens.
  std::vector<float> anchor_distances(const Prompt& prompt, int32_t layer, int32_t kept) const {
    const auto tokens = static_cast<size_t>(window_.before(prompt));
    std::vector<float> distances(tokens);
    for (int32_t head = 0; head < prompt.shape.heads; ++head) {
      std::vector<bool> bits(tokens);
      const std::vector<float> scores =
          mean_pool(window_sums(prompt, layer, head, window_), window_.kernel);
      for (const int32_t token : largest(scores, kept)) bits[static_cast<size_t>(token)] = true;
      const bool anchor = 2 * static_cast<size_t>(std::max(0, kept)) > tokens;
      for (size_t i = 0; i < tokens; ++i) distances[i] += bits[i] == anchor ? 0.0f : 1.0f;
    }
    return distances;
  }

  // Returns: the first of each of `parts` equal parts of the tokens that are not kept, in the order
  // of their distances.
  static std::vector<int32_t> representatives(const std::vector<float>& distances,
                                              const std::vector<int32_t>& kept, int32_t parts) {
    std::vector<int32_t> order;
    for (int32_t i = 0; i < static_cast<int32_t>(distances.size()); ++i) {
      if (!std::binary_search(kept.begin(), kept.end(), i)) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return distances[static_cast<size_t>(a)] < distances[static_cast<size_t>(b)];
    });
    const auto count = static_cast<int32_t>(order.size());
    const int32_t chosen = std::min(parts, count);
    std::vector<int32_t> first;
    for (int32_t part = 0; part < chosen; ++part) {
      first.push_back(order[static_cast<size_t>(int64_t{part} * count / chosen)]);
    }
    return first;
  }

  double budget_ = 0;
  double share_ = 0;  // of the budget, for tokens that stand for others
  ObservationWindow window_;
};

}  // namespace tessera::lab
