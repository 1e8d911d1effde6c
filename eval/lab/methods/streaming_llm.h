#pragma once

#include <numeric>
#include <vector>

#include "eval/lab/method.h"

namespace tessera::lab {

// Keeps the first tokens, the attention sinks, and the newest ones. Positions are those in the
// cache, as the paper has them (section 3.2): keys move closer when tokens between them are
// dropped.
class StreamingLlm final : public Cloned<StreamingLlm> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<StreamingLlm>();
    method->sinks_ = settings.integer("sinks", 4);
    method->budget_ = settings.number("budget", 0.2);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    tokens_ = static_cast<int32_t>(budget_ * prompt.size()) + sinks_;
    add_all_tokens(prompt, cache);
    for (HeadCache& head : cache.heads) keep_newest(head);
  }

  void after_read(const Read& /*read*/, MatrixView<const float> /*weights*/,
                  HeadCache& head) override {
    keep_newest(head);
  }

 private:
  void keep_newest(HeadCache& head) const {
    if (head.size() <= tokens_) return;
    std::vector<int32_t> kept(static_cast<size_t>(tokens_));
    std::iota(kept.begin(), kept.begin() + sinks_, 0);
    std::iota(kept.begin() + sinks_, kept.end(), head.size() - (tokens_ - sinks_));
    head.keep(kept);
  }

  int32_t sinks_ = 0;
  double budget_ = 0;
  int32_t tokens_ = 0;  // sinks and window
};

}  // namespace tessera::lab
