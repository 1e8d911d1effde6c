#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/op.h"

namespace tessera::bench {

// Summary of a set of times, in nanoseconds.
struct Spread {
  double min = 0;
  double lower_quartile = 0;
  double median = 0;
  double upper_quartile = 0;
};

// Requires: at least one sample. Quartiles are interpolated between samples.
Spread spread_of(std::vector<double> samples);

// Minimum time of an op, from the machine's bandwidth and peak arithmetic rate. Written bytes,
// paired with as many read bytes, count at the copy rate. The other read bytes count at the read
// rate.
struct Floor {
  double nanoseconds = 0;
  bool by_bytes = true;  // false: limited by flops
};
Floor floor_of(const OpCost& cost, const Bandwidth& bandwidth, double peak);

struct Measured {
  Spread call;  // time of a call; each sample is the mean of `calls_per_sample` calls
  int64_t samples = 0;
  int64_t calls_per_sample = 0;
  Bandwidth beside;  // best bandwidth measured between the turns of this case
  double peak = 0;   // GFLOP/s of the arithmetic, the best of the run so far
  Floor floor;
};

// Best peak rate seen so far, for each instruction set and arithmetic of a device. The device
// outlives it.
class Peaks {
 public:
  explicit Peaks(Device& device) : device_(device) {}

  // Measures again for about `seconds` (0: once).
  // Returns: the best rate so far, in GFLOP/s.
  double of(std::string_view isa, WeightFormat arithmetic, double seconds);

 private:
  Device& device_;
  std::map<std::pair<std::string, WeightFormat>, double> best_;
};

// Times the variants of a case in turns, A B C A B C ..., so that changes of the machine affect all
// variants alike. Measures memory and arithmetic rates between the rounds, until that takes several
// times the budget of all variants. Each variant gets about `seconds`, and at least three samples.
std::vector<Measured> measure(Device& device, Peaks& peaks, const std::vector<Variant>& variants,
                              double seconds);

}  // namespace tessera::bench
