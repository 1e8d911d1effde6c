#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera {

// A score and where it may well lie.
struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;

  bool contains(double other) const { return low <= other && other <= high; }
};

// The value below which the share `q` in [0, 1] of the values lies, interpolated between
// neighbours. Requires: values. Reorders them.
double quantile(std::span<double> values, double q);

// Computes a score from the items with these indices; one may come more than once, or not at all.
using Statistic = std::function<double(std::span<const size_t> items)>;

inline constexpr int kResamples = 1000;
inline constexpr double kConfidence = 0.95;

// The score of all items and its percentile bootstrap interval: as many items are drawn with
// replacement, the score is computed anew, and the middle 95 % of 1000 such scores are the
// interval. The same seed draws the same items, so presets are compared on the same draws. The
// score itself always lies within. Requires: items > 0.
Interval bootstrap(size_t items, const Statistic& statistic, uint64_t seed);

}  // namespace tessera
