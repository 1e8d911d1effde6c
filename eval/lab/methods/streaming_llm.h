#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "eval/lab/method.h"

namespace tessera::lab {

// Keeps the first tokens, the attention sinks, and the newest ones. Positions are those in the
// cache, as the paper has them (section 3.2): keys move closer when tokens between them are
// dropped. Here queries and the newest keys stay where they are, and the sinks' keys are turned
// towards them, which gives the same distances.
class StreamingLlm final : public Cloned<StreamingLlm> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<StreamingLlm>();
    method->sinks_ = settings.integer("sinks", 4);
    method->budget_ = settings.number("budget", 0.2);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    model_ = &model;
    return Method::compute_prompt(model, tokens, cache);
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    tokens_ = std::max(static_cast<int32_t>(budget_ * prompt.size()), sinks_ + 1);
    add_all_tokens(prompt, cache);
    sink_keys_.assign(cache.heads.size(), Rows(prompt.shape.head_dim));
    kv_heads_ = prompt.shape.kv_heads;
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      for (int32_t head = 0; head < prompt.shape.kv_heads; ++head) {
        keep_newest(layer, head, prompt.size() - 1, cache.at(layer, head));
      }
    }
  }

  void after_read(const Read& read, MatrixView<const float> /*weights*/, HeadCache& head) override {
    keep_newest(read.layer, read.kv_head, read.position, head);
  }

 private:
  void keep_newest(int32_t layer, int32_t kv_head, int32_t newest, HeadCache& head) {
    if (head.size() <= tokens_) return;
    std::vector<int32_t> kept(static_cast<size_t>(tokens_));
    std::iota(kept.begin(), kept.begin() + sinks_, 0);
    std::iota(kept.begin() + sinks_, kept.end(), head.size() - (tokens_ - sinks_));
    head.keep(kept);
    Rows& before = sink_keys_[static_cast<size_t>(layer * kv_heads_ + kv_head)];
    if (before.rows() == 0) {  // the first drop
      for (int32_t sink = 0; sink < sinks_; ++sink) {
        before.add(std::as_const(head.keys).row(sink));
        model_->rotate_back(layer, sink, before.row(sink));
      }
    }
    const int32_t dropped = newest + 1 - tokens_;
    for (int32_t sink = 0; sink < sinks_; ++sink) {
      const std::span<float> key = head.keys.row(sink);
      std::ranges::copy(before.row(sink), key.begin());
      model_->rotate(layer, sink + dropped, key);
    }
  }

  Model* model_ = nullptr;
  int32_t sinks_ = 0;
  double budget_ = 0;
  int32_t tokens_ = 0;  // sinks and window
  int32_t kv_heads_ = 0;
  std::vector<Rows> sink_keys_;  // of each head, before RoPE; empty until tokens are dropped
};

}  // namespace tessera::lab
