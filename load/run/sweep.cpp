#include "load/run/sweep.h"

#include <cmath>

#include "base/status_macros.h"

namespace tessera::load {

absl::StatusOr<Sweep> bisect_rate(double low, double high,
                                  const std::function<absl::StatusOr<bool>(double rate)>& passes) {
  Sweep sweep;
  const auto attempt = [&](double rate) -> absl::StatusOr<bool> {
    TESSERA_ASSIGN_OR_RETURN(const bool passed, passes(rate));
    sweep.points.push_back({rate, passed});
    (passed ? sweep.highest : sweep.lowest_failed) = rate;
    return passed;
  };
  TESSERA_ASSIGN_OR_RETURN(const bool lowest, attempt(low));
  if (!lowest) {
    return sweep;
  }
  TESSERA_ASSIGN_OR_RETURN(const bool highest, attempt(high));
  if (highest) {
    return sweep;
  }
  while (sweep.lowest_failed > sweep.highest * (1 + kSweepPrecision)) {
    TESSERA_RETURN_IF_ERROR(attempt(std::sqrt(sweep.highest * sweep.lowest_failed)).status());
  }
  return sweep;
}

}  // namespace tessera::load
