#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Heads that retrieve keep all tokens, and streaming heads the first and the newest ones
// (DuoAttention, section 2). The paper learns a gate for each head. Here a head retrieves if its
// mean query attends far back over its mean key.
class DuoAttention final : public Cloned<DuoAttention> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<DuoAttention>();
    method->retrieving_ = settings.number("retrieving", 0.5);
    method->sinks_ = settings.integer("sinks", 64);
    method->recent_ = settings.integer("recent", 256);
    method->reach_ = settings.integer("reach", 500);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    model_ = &model;
    return Method::compute_prompt(model, tokens, cache);
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    kv_heads_ = prompt.shape.kv_heads;
    std::vector<float> scores(cache.heads.size());
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      scores[place(layer, head)] = reach_of(prompt, layer, head);
    });
    const double all = static_cast<double>(scores.size());
    const auto streaming = static_cast<int32_t>(std::nearbyint(all * (1 - retrieving_)));
    retrieves_.assign(scores.size(), false);
    for (const int32_t head : largest(scores, static_cast<int32_t>(all) - streaming)) {
      retrieves_[static_cast<size_t>(head)] = true;
    }
    add_all_tokens(prompt, cache);
    for (size_t head = 0; head < cache.heads.size(); ++head) {
      if (!retrieves_[head]) keep_ends(cache.heads[head]);
    }
  }

  void after_read(const Read& read, MatrixView<const float> /*weights*/, HeadCache& head) override {
    if (!retrieves_[place(read.layer, read.kv_head)]) keep_ends(head);
  }

 private:
  size_t place(int32_t layer, int32_t head) const {
    return static_cast<size_t>(layer * kv_heads_ + head);
  }

  // Returns: the area under the sum of attention, from the oldest token on, of the mean query at
  // the last of `reach` positions over the mean key at each: mean over the group. It is 1 for a
  // head that attends to the first token alone. As in kvpress's DuoAttentionPress.
  float reach_of(const Prompt& prompt, int32_t layer, int32_t kv_head) const {
    const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
    const int32_t dim = prompt.shape.head_dim;
    const int32_t reach = std::min(reach_, prompt.size());
    const std::vector<float> key = mean_of(from.keys_before.columns(int64_t{kv_head} * dim, dim));
    float area = 0;
    for (int32_t i = 0; i < prompt.shape.group(); ++i) {
      Rows queries(dim);
      queries.add(from.queries_of(prompt.shape, kv_head * prompt.shape.group() + i));
      for (int32_t row = 0; row < prompt.size(); ++row) {
        model_->rotate_back(layer, row, queries.row(row));
      }
      std::vector<float> query = mean_of(std::as_const(queries).view());
      model_->rotate(layer, reach - 1, query);
      std::vector<float> weights;
      for (int32_t position = 0; position < reach; ++position) {
        std::vector<float> turned = key;
        model_->rotate(layer, position, turned);
        weights.push_back(from.scale * dot(query, turned));
      }
      softmax(weights);
      for (int32_t position = 0; position < reach; ++position) {
        area += weights[static_cast<size_t>(position)] * static_cast<float>(reach - position) /
                static_cast<float>(reach);
      }
    }
    return area / static_cast<float>(prompt.shape.group());
  }

  static std::vector<float> mean_of(MatrixView<const float> rows) {
    std::vector<float> mean(static_cast<size_t>(rows.cols));
    for (int64_t i = 0; i < rows.rows; ++i) {
      add_scaled(mean, 1 / static_cast<float>(rows.rows), rows.row(i));
    }
    return mean;
  }

  void keep_ends(HeadCache& head) const {
    if (head.size() <= sinks_ + recent_) return;
    std::vector<int32_t> kept(static_cast<size_t>(sinks_ + recent_));
    std::iota(kept.begin(), kept.begin() + sinks_, 0);
    std::iota(kept.begin() + sinks_, kept.end(), head.size() - recent_);
    head.keep(kept);
  }

  Model* model_ = nullptr;
  double retrieving_ = 0;  // share of the KV heads
  int32_t sinks_ = 0;
  int32_t recent_ = 0;
  int32_t reach_ = 0;
  int32_t kv_heads_ = 0;
  std::vector<bool> retrieves_;  // [layers * kv_heads]
};

}  // namespace tessera::lab
