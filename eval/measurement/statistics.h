#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera {

// A score and its confidence interval.
struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;

  bool contains(double other) const { return low <= other && other <= high; }
};

// Returns: the value below which the share `q` in [0, 1] of the values lies, interpolated between
// neighbours. Reorders `values`.
// Requires: at least one value.
double quantile(std::span<double> values, double q);

// Computes a score from the items with these indices. An index may occur several times, or not at
// all.
using Statistic = std::function<double(std::span<const size_t> items)>;

inline constexpr int kResamples = 1000;
inline constexpr double kConfidence = 0.95;

// Returns: the score of all items and its percentile bootstrap interval. `items` items are drawn
// with replacement and scored, 1000 times. The middle 95 % of these scores are the interval. The
// same seed draws the same items, so presets are compared on the same draws. The score itself
// always lies in the interval.
// Requires: items > 0.
Interval bootstrap(size_t items, const Statistic& statistic, uint64_t seed);

}  // namespace tessera
