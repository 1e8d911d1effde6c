#pragma once

#include <cmath>

#include "eval/lab/eviction.h"

namespace tessera::lab {

// Keeps the tokens with the largest sum of a softmax with Gumbel noise and a temperature, which
// rises while tokens are generated, and a window of the newest ones (Keyformer, algorithm 1).
class Keyformer final : public Cloned<Keyformer, Eviction<float>> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Keyformer>();
    method->budget_ = settings.number("budget", 0.2);
    method->recent_share_ = settings.number("recent", 0.3);
    method->first_temperature_ = settings.number("first", 1);
    method->growth_ = settings.number("growth", 0.01);
    return method;
  }

 private:
  // exp((x + noise) / t) over its sum. A probability w is exp(x) up to a factor that cancels, and
  // exp(noise) is 1 / -log(u), so the product of both takes the place of logits.
  void observe(const Observation& seen, std::span<float> sums) const override {
    const double temperature = std::min(2.0, first_temperature_ + growth_ * seen.generated);
    std::vector<float> row(sums.size());
    for (int64_t head = 0; head < seen.weights.rows; ++head) {
      const std::span<const float> weights = seen.weights.row(head);
      const uint64_t query = key_of(seen, static_cast<int32_t>(head));
      double sum = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        const float u = uniform(query + static_cast<uint64_t>(seen.positions[i]));
        row[i] = weights[i] / -std::log(u);
        if (temperature != 1) row[i] = std::pow(row[i], static_cast<float>(1 / temperature));
        sum += double{row[i]};
      }
      add_scaled(sums, static_cast<float>(1 / sum), row);
    }
  }
  double score(const float& sum, int32_t /*now*/) const override { return double{sum}; }
  int32_t recent() const override { return static_cast<int32_t>(recent_share_ * budget_tokens()); }

  static uint64_t key_of(const Observation& seen, int32_t head) {
    const auto layer = static_cast<uint64_t>(seen.layer);
    const auto row = static_cast<uint64_t>(seen.kv_head * seen.weights.rows + head);
    return ((layer << 10 | row) << 20 | static_cast<uint64_t>(seen.position)) << 20;
  }

  // Returns: a number in (0, 1) with 23 digits, by the finaliser of SplitMix64.
  static float uniform(uint64_t key) {
    key += 0x9e3779b97f4a7c15u;
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9u;
    key = (key ^ key >> 27) * 0x94d049bb133111ebu;
    key ^= key >> 31;
    return (static_cast<float>(key >> 41) + 0.5f) * 0x1p-23f;
  }

  double recent_share_ = 0;  // of the budget
  double first_temperature_ = 0;
  double growth_ = 0;  // of the temperature, with each generated token
};

}  // namespace tessera::lab
