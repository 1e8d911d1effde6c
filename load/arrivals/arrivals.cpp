#include "load/arrivals/arrivals.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera::load {

double Arrivals::gap() {
  switch (options_.process) {
    case ArrivalProcess::constant:
      return 1;
    case ArrivalProcess::poisson:
      return variates_.exponential();
    case ArrivalProcess::gamma:
      return variates_.gamma(options_.burstiness) / options_.burstiness;
  }
  return 1;
}

double Arrivals::time_of(double count) const {
  const double ramp = options_.ramp_seconds;
  if (ramp <= 0) {
    return count / options_.rate;
  }
  const double in_ramp = ramp * (options_.rate + options_.end_rate) / 2;
  if (count >= in_ramp) {
    return ramp + (count - in_ramp) / options_.end_rate;
  }
  // count = rate t + slope t^2 / 2, solved in the form that also holds for a slope of 0.
  const double slope = (options_.end_rate - options_.rate) / ramp;
  const double root = std::sqrt(options_.rate * options_.rate + 2 * slope * count);
  return 2 * count / (options_.rate + root);
}

double Arrivals::next() {
  const double time = time_of(count_);
  count_ += gap();
  return time;
}

absl::StatusOr<ArrivalProcess> parse_arrival_process(std::string_view name) {
  if (name == "constant") return ArrivalProcess::constant;
  if (name == "poisson") return ArrivalProcess::poisson;
  if (name == "gamma") return ArrivalProcess::gamma;
  return absl::InvalidArgumentError(absl::StrCat("--arrivals: there is no '", std::string(name),
                                                 "'; there are constant, poisson and gamma"));
}

}  // namespace tessera::load
