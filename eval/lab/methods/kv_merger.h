#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "eval/lab/attention_sums.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Merges consecutive tokens with similar keys into one (KVMerger, section 4). The token of a set
// with the most attention is its pivot. Keys and values become means of the set, weighted by a
// Gaussian kernel of the distance between keys. The newest tokens and those with the most
// attention are not merged.
class KvMerger final : public Cloned<KvMerger> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<KvMerger>();
    method->budget_ = settings.number("budget", 0.5);
    method->recent_ = settings.number("recent", 0.17);
    method->important_ = settings.number("important", 0.12);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const auto budget = static_cast<int32_t>(budget_ * prompt.size());
    for_each_head(prompt, [&](int32_t layer, int32_t kv_head) {
      const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
      const MatrixView<const float> keys = from.keys_of(prompt.shape, kv_head);
      const MatrixView<const float> values = from.values_of(prompt.shape, kv_head);
      const std::vector<float> sums = attention_sums(prompt, layer, kv_head);
      const std::vector<bool> joins = tokens_that_join(sums, keys, prompt.size() - budget);
      HeadCache& head = cache.at(layer, kv_head);
      for (int32_t first = 0; first < prompt.size();) {
        int32_t end = first + 1;
        while (end < prompt.size() && joins[static_cast<size_t>(end)]) ++end;
        add_set(first, end, sums, keys, values, head);
        first = end;
      }
    });
  }

 private:
  // Returns: the `count` tokens whose keys are most like those before them, of those that may
  // merge. So the threshold of the cosine is the one that meets the budget.
  std::vector<bool> tokens_that_join(const std::vector<float>& sums, MatrixView<const float> keys,
                                     int32_t count) const {
    const auto tokens = static_cast<int32_t>(sums.size());
    const auto recent = static_cast<int32_t>(recent_ * tokens);
    std::vector<bool> apart(sums.size());
    std::fill(apart.end() - recent, apart.end(), true);
    for (const int32_t token : largest(std::span(sums).first(static_cast<size_t>(tokens - recent)),
                                       static_cast<int32_t>(important_ * tokens))) {
      apart[static_cast<size_t>(token)] = true;
    }
    constexpr float kNever = -2;  // below every cosine
    std::vector<float> likeness(sums.size(), kNever);
    for (int32_t i = 1; i < tokens; ++i) {
      const auto place = static_cast<size_t>(i);
      if (!apart[place] && !apart[place - 1]) {
        likeness[place] = cosine(keys.row(i), keys.row(i - 1));
      }
    }
    std::vector<bool> joins(sums.size());
    for (const int32_t token : largest(likeness, count)) {
      const auto place = static_cast<size_t>(token);
      joins[place] = likeness[place] > kNever;
    }
    return joins;
  }

  static void add_set(int32_t first, int32_t end, const std::vector<float>& sums,
                      MatrixView<const float> keys, MatrixView<const float> values,
                      HeadCache& head) {
    const auto pivot = static_cast<int32_t>(
        std::max_element(sums.begin() + first, sums.begin() + end) - sums.begin());
    std::vector<float> squares;  // of distances to the pivot's key
    float distances = 0;
    for (int32_t i = first; i < end; ++i) {
      std::vector<float> difference(keys.row(i).begin(), keys.row(i).end());
      add_scaled(difference, -1, keys.row(pivot));
      squares.push_back(dot(difference, difference));
      distances += std::sqrt(squares.back());
    }
    const float sigma = distances / (std::sqrt(2.0f) * static_cast<float>(end - first));
    float all = 0;
    for (float& square : squares) {
      square = sigma > 0 ? std::exp(-square / (2 * sigma * sigma)) : 1;
      all += square;
    }
    std::vector<float> key(keys.row(pivot).size());
    std::vector<float> value = key;
    for (int32_t i = first; i < end; ++i) {
      const float weight = squares[static_cast<size_t>(i - first)] / all;
      add_scaled(key, weight, keys.row(i));
      add_scaled(value, weight, values.row(i));
    }
    head.add(pivot, key, value);
  }

  double budget_ = 0;
  double recent_ = 0;     // share of the tokens
  double important_ = 0;  // share of the tokens
};

}  // namespace tessera::lab
