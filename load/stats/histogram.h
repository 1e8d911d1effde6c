#pragma once

#include <cstdint>
#include <map>

#include "eval/measurement/statistics.h"
#include "load/request/variates.h"

namespace tessera::load {

// Distribution of times in fixed memory. Buckets grow by 1 % (a DDSketch with a relative error of
// 0.5 %), from 1 us to 28 hours; times outside lie in the first or last bucket.
class Histogram {
 public:
  void add(double seconds, int64_t times = 1);
  void merge(const Histogram& other);

  int64_t count() const { return count_; }
  double sum() const { return sum_; }
  double mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0; }
  double min() const { return min_; }
  double max() const { return max_; }

  // Returns: the time below which the share `q` in [0, 1] lies; 0 if empty.
  double quantile(double q) const;

  // Returns: the quantile of one bootstrap sample of `size` values. The rank of an order statistic
  // in a uniform sample is Beta distributed, so no value needs to be drawn.
  double resampled_quantile(double q, int64_t size, Variates& variates) const;

  // Returns: the quantile with its 95 % percentile bootstrap interval. `independent` is the number
  // of independent observations; gaps of one request are not independent of each other.
  Interval interval(double q, int64_t independent, uint64_t seed) const;

  // Bucket counts by index, for files.
  const std::map<int32_t, int64_t>& buckets() const { return buckets_; }
  static double bucket_value(int32_t index);  // seconds

 private:
  std::map<int32_t, int64_t> buckets_;
  int64_t count_ = 0;
  double sum_ = 0;
  double min_ = 0;
  double max_ = 0;
};

inline constexpr int kBootstrapDraws = 1000;

// Returns: Wilson's 95 % interval of a share. {0, 0, 1} if nothing was counted.
Interval share_interval(int64_t hits, int64_t count);

}  // namespace tessera::load
