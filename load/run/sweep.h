#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::load {

struct SweepPoint {
  double rate = 0;
  bool passed = false;
};

struct Sweep {
  std::vector<SweepPoint> points;  // in the order they were tried
  double highest = 0;              // rate that passed; 0: none did
  double lowest_failed = 0;        // 0: none failed
};

// Finds the highest rate in [low, high] that passes, by bisection. Tries both ends first. Ends when
// the bounds differ by 5 % or less. Assumes that a rate above one that failed would fail too.
// Errors: those of `passes`.
absl::StatusOr<Sweep> bisect_rate(double low, double high,
                                  const std::function<absl::StatusOr<bool>(double rate)>& passes);

inline constexpr double kSweepPrecision = 0.05;

}  // namespace tessera::load
