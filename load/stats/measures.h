#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/record/record.h"
#include "load/stats/histogram.h"

namespace tessera::load {

// A limit of a service level objective: "ttft_p90=0.5" (seconds).
struct SloLimit {
  enum class Measure { ttft, tpot, e2e };
  Measure measure = Measure::ttft;
  double share = 0.9;
  double seconds = 0;

  // Parses "ttft_p90=500ms,tpot_p50=0.05s": milliseconds or seconds.
  // Errors: InvalidArgument.
  static absl::StatusOr<std::vector<SloLimit>> parse(const std::string& text);
  std::string text() const;
};

// One second of the run.
struct TimelineSecond {
  int64_t started = 0;
  int64_t finished = 0;  // without error
  int64_t failed = 0;
  int64_t output_tokens = 0;
  double ttft_sum = 0;  // of the requests that started in it
  int64_t ttft_count = 0;
};

inline constexpr double kCachedShare = 0.8;

// Distributions and counts of a set of requests, in memory that does not grow with their number.
struct Measures {
  Histogram ttft;
  Histogram ttft_cached;  // of requests that found kCachedShare of their prompt in the prefix cache
  Histogram itl;
  Histogram tpot;
  Histogram e2e;
  Histogram lag;  // from the intended start until the request was sent
  std::array<int64_t, kErrorClasses> errors{};
  std::array<std::string, kErrorClasses> first_messages{};  // of each class of errors
  int64_t requests = 0;
  int64_t injected = 0;  // faults; of these only failed checks are counted elsewhere
  int64_t ok = 0;
  int64_t within_slo = 0;  // ok, neither missed nor wrong, and within each limit
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t kv_bytes = 0;  // sum over requests that report them
  int64_t kv_requests = 0;
  int64_t checked = 0;
  int64_t correct = 0;
  int64_t differs = 0;
  int64_t missed = 0;
  int64_t wrong = 0;
  double retry_after_sum = 0;
  int64_t retry_after_count = 0;

  void add(const RequestRecord& record, const std::vector<SloLimit>& slos);
  const Histogram& of(SloLimit::Measure measure) const;
};

// Everything that is measured in one run.
class RunStatistics {
 public:
  static constexpr size_t kShownWrong = 100;

  // Requests that were intended to start before `warmup` are counted in no distribution.
  explicit RunStatistics(std::vector<SloLimit> slos, double warmup = 0)
      : slos_(std::move(slos)), warmup_(warmup) {}

  void add(const RequestRecord& record);

  const Measures& all() const { return all_; }
  const std::map<std::string, Measures>& by_workload() const { return by_workload_; }
  const std::vector<TimelineSecond>& timeline() const { return timeline_; }
  const std::vector<RequestRecord>& wrong() const { return wrong_; }
  const std::vector<SloLimit>& slos() const { return slos_; }
  double warmup() const { return warmup_; }
  double end() const { return end_; }  // seconds; the last end of a request
  double seconds() const;              // from the end of the warm-up to the last end
  bool within_slos() const;            // each limit holds for its share of requests

 private:
  TimelineSecond& second(double time);

  std::vector<SloLimit> slos_;
  double warmup_;
  double end_ = 0;
  Measures all_;
  std::map<std::string, Measures> by_workload_;
  std::vector<TimelineSecond> timeline_;
  std::vector<RequestRecord> wrong_;
};

}  // namespace tessera::load
