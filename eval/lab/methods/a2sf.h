#pragma once

#include "eval/lab/eviction.h"

namespace tessera::lab {

// Keeps the tokens with the largest sum of attention, in which each query multiplies the sum so
// far by a forgetting factor (A2SF, section 3). So old attention counts less.
class A2sf final : public Cloned<A2sf, Eviction<float>> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<A2sf>();
    method->budget_ = settings.number("budget", 0.2);
    method->factor_ = settings.number("factor", 0.95);
    method->recent_ = settings.integer("recent", 16);
    return method;
  }

 private:
  void observe(const Observation& seen, std::span<float> sums) const override {
    for (float& sum : sums) sum *= static_cast<float>(factor_);
    for (int64_t i = 0; i < seen.weights.rows; ++i) add_scaled(sums, 1, seen.weights.row(i));
  }
  double score(const float& sum, int32_t /*now*/) const override { return double{sum}; }
  int32_t recent() const override { return recent_; }

  double factor_ = 0;
  int32_t recent_ = 0;
};

}  // namespace tessera::lab
