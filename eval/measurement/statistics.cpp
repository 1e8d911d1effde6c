#include "eval/measurement/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "eval/measurement/seeded_random.h"

namespace tessera {

double quantile(std::span<double> values, double q) {
  TESSERA_CHECK(!values.empty(), "a quantile needs values");
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), at, values.end());
  if (below + 1 == values.size()) {
    return *at;
  }
  const double next = *std::min_element(at + 1, values.end());
  return *at + (place - std::floor(place)) * (next - *at);
}

Interval bootstrap(size_t items, const Statistic& statistic, uint64_t seed) {
  TESSERA_CHECK(items > 0, "a score needs items");
  std::vector<size_t> drawn(items);
  std::iota(drawn.begin(), drawn.end(), size_t{0});
  Interval interval;
  interval.value = statistic(drawn);
  SeededRandom random(seed);
  std::vector<double> scores(kResamples);
  for (double& score : scores) {
    for (size_t& item : drawn) {
      item = random.below(items);
    }
    score = statistic(drawn);
  }
  constexpr double kTail = (1 - kConfidence) / 2;
  interval.low = std::min(interval.value, quantile(scores, kTail));
  interval.high = std::max(interval.value, quantile(scores, 1 - kTail));
  return interval;
}

}  // namespace tessera
