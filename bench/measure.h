#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/op.h"

namespace tessera::bench {

// What is true of a set of times, in nanoseconds.
struct Spread {
  double min = 0;
  double lower_quartile = 0;
  double median = 0;
  double upper_quartile = 0;
};

// Requires at least one sample. Between two samples a quartile is interpolated.
Spread spread_of(std::vector<double> samples);

// The least time that a machine which moves and computes so much could take. What is written goes
// at the rate of copying with as much that is read; the rest is read at the rate of reading.
struct Floor {
  double nanoseconds = 0;
  bool by_bytes = true;  // or else by flops
};
Floor floor_of(const OpCost& cost, const Bandwidth& bandwidth, double peak);

struct Measured {
  Spread call;  // a call's time; each sample is the mean of `calls_per_sample` calls
  int64_t samples = 0;
  int64_t calls_per_sample = 0;
  Bandwidth beside;  // the best that memory gave between this case's turns
  double peak = 0;   // GFLOP/s of the arithmetic, the best of the whole run so far
  Floor floor;
};

// The peaks of a device's arithmetic: the best that was ever seen of each.
class Peaks {
 public:
  explicit Peaks(Device& device) : device_(device) {}

  // Measures for about `seconds` more; 0: once.
  double of(std::string_view isa, WeightFormat arithmetic, double seconds);

 private:
  Device& device_;
  std::map<std::pair<std::string, WeightFormat>, double> best_;
};

// Times the variants of a case in turns, A B C A B C ..., so that what changes about the machine
// meanwhile changes it for all, and measures its memory and arithmetic between the rounds, until
// that has taken several times what the variants may. Each variant gets about `seconds`, and three
// samples at least.
std::vector<Measured> measure(Device& device, Peaks& peaks, const std::vector<Variant>& variants,
                              double seconds);

}  // namespace tessera::bench
