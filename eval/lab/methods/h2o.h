#pragma once

#include "eval/lab/eviction.h"

namespace tessera::lab {

// Keeps heavy hitters, the tokens with the largest sum of all attention so far, and the newest
// tokens, half of the budget each (H2O, algorithm 1).
class H2o final : public Cloned<H2o, Eviction<float>> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<H2o>();
    method->budget_ = settings.number("budget", 0.2);
    method->recent_share_ = settings.number("recent", 0.5);
    return method;
  }

 private:
  void observe(const Observation& seen, std::span<float> sums) const override {
    for (int64_t i = 0; i < seen.weights.rows; ++i) add_scaled(sums, 1, seen.weights.row(i));
  }
  double score(const float& sum, int32_t /*now*/) const override { return double{sum}; }
  int32_t recent() const override { return static_cast<int32_t>(recent_share_ * budget_tokens()); }

  double recent_share_ = 0;  // of the budget
};

}  // namespace tessera::lab
