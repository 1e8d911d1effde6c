#pragma once

#include <algorithm>

#include "eval/lab/eviction.h"

namespace tessera::lab {

// When a token received attention.
struct Recurrence {
  int32_t last = 0;      // position of the last query that attended to it
  int32_t interval = 0;  // the longest time between two such queries
};

// Evicts the tokens that were not attended to for long, measured by their own longest pause so far
// (LazyEviction: recurrence interval tracking, and eviction centred on the maximum interval). It
// evicts after each observation window only, and spares the window's tokens.
class LazyEviction final : public Cloned<LazyEviction, Eviction<Recurrence>> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<LazyEviction>();
    method->budget_ = settings.number("budget", 0.5);
    method->window_ = settings.integer("window", 16);
    method->threshold_ = settings.number("threshold", 0.001);
    return method;
  }

 private:
  Recurrence enter(int32_t position) const override { return {position, 0}; }

  void observe(const Observation& seen, std::span<Recurrence> tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      float most = 0;
      for (int64_t head = 0; head < seen.weights.rows; ++head) {
        most = std::max(most, seen.weights.row(head)[i]);
      }
      if (double{most} < threshold_) continue;
      tokens[i].interval = std::max(tokens[i].interval, seen.position - tokens[i].last);
      tokens[i].last = seen.position;
    }
  }
  double score(const Recurrence& token, int32_t now) const override {
    return -static_cast<double>(now - token.last) / (token.interval + 1);
  }
  int32_t recent() const override { return window_; }
  bool is_due(int32_t entries, int32_t generated) const override {
    return generated % window_ == 0 && entries > budget_tokens();
  }

  int32_t window_ = 0;
  double threshold_ = 0;  // of attention
};

}  // namespace tessera::lab
