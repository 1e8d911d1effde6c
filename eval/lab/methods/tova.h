#pragma once

#include <algorithm>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Keeps the tokens to which the newest query attends most, by the mean over a layer's heads
// (TOVA, section 3). All heads of a layer keep the same tokens. Each generated token evicts one.
class Tova final : public Cloned<Tova> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Tova>();
    method->budget_ = settings.number("budget", 0.2);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    tokens_ = std::max(1, static_cast<int32_t>(budget_ * prompt.size()));
    sums_.assign(static_cast<size_t>(prompt.shape.layers), {});
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      std::vector<float> sums(prompt.tokens.size());
      for (int32_t head = 0; head < prompt.shape.heads; ++head) {
        add_scaled(sums, 1, attention_row(prompt, layer, head, prompt.size() - 1));
      }
      const std::vector<int32_t> kept = kept_of(sums);
      for (int32_t head = 0; head < prompt.shape.kv_heads; ++head) {
        add_tokens(prompt, layer, head, kept, cache);
      }
    }
  }

  void after_read(const Read& read, MatrixView<const float> weights, HeadCache& head) override {
    std::vector<float>& sums = sums_[static_cast<size_t>(read.layer)];
    sums.resize(head.positions.size());
    for (int64_t i = 0; i < weights.rows; ++i) add_scaled(sums, 1, weights.row(i));
  }

  void after_token(Cache& cache) override {
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
      std::vector<float>& sums = sums_[static_cast<size_t>(layer)];
      const std::vector<int32_t> kept = kept_of(sums);
      sums.clear();
      for (int32_t head = 0; head < cache.shape.kv_heads; ++head) cache.at(layer, head).keep(kept);
    }
  }

 private:
  // The newest token stays, as in kvpress. Its own attention ranks it high in any case.
  std::vector<int32_t> kept_of(const std::vector<float>& sums) const {
    const std::span<const float> older(sums.data(), sums.size() - 1);
    std::vector<int32_t> kept = largest(older, tokens_ - 1);
    kept.push_back(static_cast<int32_t>(older.size()));
    return kept;
  }

  double budget_ = 0;
  int32_t tokens_ = 0;
  std::vector<std::vector<float>> sums_;  // of each layer's entries, while a token is computed
};

}  // namespace tessera::lab
