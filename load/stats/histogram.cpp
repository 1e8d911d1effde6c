#include "load/stats/histogram.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera::load {
namespace {

constexpr double kSmallest = 1e-6;
constexpr double kLargest = 1e5;
const double kLogGrowth = std::log(1.01);

int32_t bucket_of(double seconds) {
  return static_cast<int32_t>(
      std::lround(std::log(std::clamp(seconds, kSmallest, kLargest) / kSmallest) / kLogGrowth));
}

}  // namespace

double Histogram::bucket_value(int32_t index) {
  return kSmallest * std::exp(index * kLogGrowth);
}

void Histogram::add(double seconds, int64_t times) {
  min_ = count_ == 0 ? seconds : std::min(min_, seconds);
  max_ = count_ == 0 ? seconds : std::max(max_, seconds);
  buckets_[bucket_of(seconds)] += times;
  count_ += times;
  sum_ += seconds * static_cast<double>(times);
}

void Histogram::merge(const Histogram& other) {
  if (other.count_ == 0) {
    return;
  }
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = count_ == 0 ? other.max_ : std::max(max_, other.max_);
  for (const auto& [index, times] : other.buckets_) {
    buckets_[index] += times;
  }
  count_ += other.count_;
  sum_ += other.sum_;
}

double Histogram::quantile(double q) const {
  const double rank = q * static_cast<double>(count_ - 1);
  int64_t below = 0;
  for (const auto& [index, times] : buckets_) {
    below += times;
    if (static_cast<double>(below) > rank) {
      return std::clamp(bucket_value(index), min_, max_);
    }
  }
  return max_;
}

double Histogram::resampled_quantile(double q, int64_t size, Variates& variates) const {
  const double rank = std::floor(q * static_cast<double>(size - 1)) + 1;
  return quantile(variates.beta(rank, static_cast<double>(size) + 1 - rank));
}

Interval Histogram::interval(double q, int64_t independent, uint64_t seed) const {
  Interval result{quantile(q), 0, 0};
  if (count_ == 0 || independent == 0) {
    return result;
  }
  Variates variates(seed);
  std::vector<double> draws(kBootstrapDraws);
  for (double& draw : draws) {
    draw = resampled_quantile(q, independent, variates);
  }
  constexpr double kTail = (1 - kConfidence) / 2;
  result.low = std::min(result.value, tessera::quantile(draws, kTail));
  result.high = std::max(result.value, tessera::quantile(draws, 1 - kTail));
  return result;
}

Interval share_interval(int64_t hits, int64_t count) {
  if (count == 0) {
    return {0, 0, 1};
  }
  constexpr double kZ = 1.959964;
  const auto n = static_cast<double>(count);
  const double p = static_cast<double>(hits) / n;
  const double middle = (p + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / (1 + kZ * kZ / n);
  return {p, std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

}  // namespace tessera::load
