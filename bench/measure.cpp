#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"

namespace tessera::bench {
namespace {

constexpr int kRounds = 10;
constexpr size_t kFewestSamples = 3;
constexpr double kPatience = 5;  // limit in budgets, for samples longer than one budget

double nanoseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

double time_calls(const Device& device, const Variant& variant, int64_t calls) {
  if (variant.restore) {
    variant.restore();
  }
  device.wait();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) {
    variant.call();
  }
  device.wait();
  return nanoseconds_since(start);
}

// State of one variant during its measurement.
struct Turns {
  const Device& device;
  const Variant& variant;
  double budget;      // nanoseconds
  int64_t calls = 1;  // calls of one sample
  bool is_short = true;
  double spent = 0;
  std::vector<double> samples;

  // The first call is not timed: its memory is not mapped and its branches are not predicted yet.
  void calibrate() {
    time_calls(device, variant, 1);
    const double once = time_calls(device, variant, 1);
    calls =
        std::clamp<int64_t>(std::llround(device.sample_nanoseconds() / once), 1, variant.max_calls);
    is_short = once * static_cast<double>(calls) < budget / kRounds;
  }

  bool wants_more() const { return samples.size() < kFewestSamples || spent < kPatience * budget; }

  // Runs one turn: a tenth of the budget, at least one sample. Short turns begin with untimed
  // calls, because another variant's threads may still be spinning and its memory may still be
  // cached.
  void take() {
    double turn = 0;
    if (is_short) {
      time_calls(device, variant, calls);
    }
    do {
      const double taken = time_calls(device, variant, calls);
      samples.push_back(taken / static_cast<double>(calls));
      turn += taken;
    } while (turn < budget / kRounds);
    spent += turn;
  }
};

Bandwidth best_of(const Bandwidth& a, const Bandwidth& b) {
  return {std::max(a.read, b.read), std::max(a.copy, b.copy)};
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  TESSERA_CHECK(!samples.empty(), "a spread needs at least one sample");
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(samples.size() - 1);
    const size_t below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, samples.size() - 1);
    return samples[below] + (place - std::floor(place)) * (samples[above] - samples[below]);
  };
  return {samples[0], at(0.25), at(0.5), at(0.75)};
}

Floor floor_of(const OpCost& cost, const Bandwidth& bandwidth, double peak) {
  const int64_t copied = std::min(2 * cost.written_bytes, cost.bytes());
  const double moving = static_cast<double>(copied) / bandwidth.copy +
                        static_cast<double>(cost.bytes() - copied) / bandwidth.read;
  const double computing = static_cast<double>(cost.flops) / peak;
  return {std::max(moving, computing), moving >= computing};
}

double Peaks::of(std::string_view isa, WeightFormat arithmetic, double seconds) {
  double& best = best_[{std::string(isa), arithmetic}];
  best = std::max(best, device_.measure_peak(isa, arithmetic, seconds));
  return best;
}

std::vector<Measured> measure(Device& device, Peaks& peaks, const std::vector<Variant>& variants,
                              double seconds) {
  std::vector<Turns> turns;
  for (const Variant& variant : variants) {
    turns.push_back({.device = device, .variant = variant, .budget = seconds * 1e9, .samples = {}});
    turns.back().calibrate();
  }
  const double max = kPatience * seconds * 1e9 * static_cast<double>(variants.size());
  double looking = 0;                   // nanoseconds spent on rates of memory and arithmetic
  std::map<int64_t, Bandwidth> beside;  // by cycled bytes
  for (int round = 0; round < kRounds; ++round) {
    for (Turns& turn : turns) {
      if (turn.wants_more()) {
        turn.take();
      }
    }
    if (looking > max) {
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    for (const Variant& variant : variants) {
      beside.try_emplace(variant.cycled_bytes);
      peaks.of(variant.isa, variant.arithmetic, 0);
    }
    for (auto& [bytes, best] : beside) {
      best = best_of(best, device.measure_bandwidth(bytes));
    }
    looking += nanoseconds_since(start);
  }
  std::vector<Measured> all;
  for (const Turns& turn : turns) {
    const Variant& variant = turn.variant;
    Measured measured{.call = spread_of(turn.samples),
                      .samples = std::ssize(turn.samples),
                      .calls_per_sample = turn.calls,
                      .beside = beside[variant.cycled_bytes],
                      .peak = peaks.of(variant.isa, variant.arithmetic, 0),
                      .floor = {}};
    measured.floor = floor_of(variant.cost, measured.beside, measured.peak);
    all.push_back(measured);
  }
  return all;
}

}  // namespace tessera::bench
