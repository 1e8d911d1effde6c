#include "eval/lab/weighted_levels.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::lab {
namespace {

std::pair<double, double> mean_and_deviation(const std::vector<double>& numbers) {
  double sum = 0;
  double squares = 0;
  for (const double number : numbers) {
    sum += number;
    squares += number * number;
  }
  const auto count = static_cast<double>(numbers.size());
  const double mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean))};
}

}  // namespace

Levels weighted_levels(std::vector<Weighted> numbers, int bits) {
  std::ranges::sort(numbers, std::less<>(), &Weighted::number);
  std::vector<double> weights = {0};  // sums up to each number
  std::vector<double> moments = {0};
  for (const Weighted& own : numbers) {
    weights.push_back(weights.back() + own.weight);
    moments.push_back(moments.back() + own.weight * own.number);
  }
  const size_t count = size_t{1} << bits;
  Levels levels;
  for (size_t i = 0; i < count; ++i) {
    const double part =
        weights.back() * (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    const auto at = std::ranges::lower_bound(weights.begin() + 1, weights.end(), part);
    levels.push_back(numbers[static_cast<size_t>(at - weights.begin() - 1)].number);
  }
  constexpr int kIterations = 100;
  for (int i = 0; i < kIterations; ++i) {
    const Levels before = levels;
    size_t begin = 0;
    for (size_t level = 0; level < count; ++level) {
      const double bound = level + 1 < count ? (before[level] + before[level + 1]) / 2 : HUGE_VAL;
      const auto at = std::ranges::upper_bound(numbers, bound, std::less<>(), &Weighted::number);
      const auto end = static_cast<size_t>(at - numbers.begin());
      const double weight = weights[end] - weights[begin];
      if (weight > 0) levels[level] = (moments[end] - moments[begin]) / weight;
      begin = end;
    }
    if (levels == before) break;
  }
  return levels;
}

double nearest(const Levels& levels, double number) {
  const auto above = std::ranges::lower_bound(levels, number);
  if (above == levels.begin()) return levels.front();
  if (above == levels.end()) return levels.back();
  return number - *(above - 1) <= *above - number ? *(above - 1) : *above;
}

void keep_mean_and_deviation(const std::vector<Weighted>& numbers, Levels& levels) {
  std::vector<double> exact;
  std::vector<double> rounded;
  for (const Weighted& own : numbers) {
    exact.push_back(own.number);
    rounded.push_back(nearest(levels, own.number));
  }
  const auto [mean, deviation] = mean_and_deviation(exact);
  const auto [own_mean, own_deviation] = mean_and_deviation(rounded);
  if (own_deviation == 0) return;
  for (double& level : levels) level = (level - own_mean) * deviation / own_deviation + mean;
}

}  // namespace tessera::lab
