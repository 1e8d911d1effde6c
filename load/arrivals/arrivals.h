#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "load/request/variates.h"

namespace tessera::load {

enum class ArrivalProcess { constant, poisson, gamma };

struct ArrivalOptions {
  ArrivalProcess process = ArrivalProcess::poisson;
  double rate = 1;  // arrivals a second, at the beginning
  // Ramp: the rate changes linearly to `end_rate` over this time, and then stays.
  double end_rate = 1;
  double ramp_seconds = 0;  // 0: no ramp
  // Shape of the gamma distribution of gaps, vLLM's `burstiness`: 1 is Poisson, less is burstier.
  double burstiness = 1;
};

// Intended starts of an open loop: a pure function of options and seed. A ramp stretches the time
// of the process with constant rate (time rescaling), so that its gaps keep their distribution.
class Arrivals {
 public:
  // Requires: rates and burstiness above 0.
  Arrivals(const ArrivalOptions& options, uint64_t seed) : options_(options), variates_(seed) {}

  // Returns: seconds since the start of the run, ascending.
  double next();

 private:
  double gap();  // mean 1
  // Returns: the time by which `count` arrivals are expected.
  double time_of(double count) const;

  ArrivalOptions options_;
  Variates variates_;
  double count_ = 0;
};

// Parses "constant", "poisson" or "gamma".
// Errors: InvalidArgument.
absl::StatusOr<ArrivalProcess> parse_arrival_process(std::string_view name);

}  // namespace tessera::load
