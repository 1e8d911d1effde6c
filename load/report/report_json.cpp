#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "load/report/machine.h"
#include "load/report/report.h"

namespace tessera::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kPercentiles[] = {50, 90, 99, 99.9};

Json interval_json(const Interval& interval) {
  return {{"value", interval.value}, {"low", interval.low}, {"high", interval.high}};
}

Json histogram_json(const Histogram& histogram, int64_t independent, uint64_t seed) {
  Json report = {{"unit", "s"},
                 {"count", histogram.count()},
                 {"independent", independent},
                 {"mean", histogram.mean()},
                 {"min", histogram.min()},
                 {"max", histogram.max()}};
  for (const double percent : kPercentiles) {
    report[absl::StrCat("p", percent)] =
        interval_json(histogram.interval(percent / 100, independent, seed));
  }
  Json buckets = Json::array();
  for (const auto& [index, times] : histogram.buckets()) {
    buckets.push_back({Histogram::bucket_value(index), times});
  }
  report["histogram"] = std::move(buckets);
  return report;
}

Json latency_json(const Measures& measures, uint64_t seed) {
  return {{"ttft", histogram_json(measures.ttft, measures.ttft.count(), seed)},
          {"ttft_cached", histogram_json(measures.ttft_cached, measures.ttft_cached.count(), seed)},
          {"itl", histogram_json(measures.itl, std::min(measures.ok, measures.itl.count()), seed)},
          {"tpot", histogram_json(measures.tpot, measures.tpot.count(), seed)},
          {"e2e", histogram_json(measures.e2e, measures.e2e.count(), seed)},
          {"client_lag", histogram_json(measures.lag, measures.lag.count(), seed)}};
}

Json requests_json(const Measures& measures) {
  Json errors = Json::object();
  Json messages = Json::object();
  for (int i = 1; i < kErrorClasses; ++i) {
    if (const int64_t count = measures.errors[static_cast<size_t>(i)]; count > 0) {
      const std::string error(name(static_cast<ErrorClass>(i)));
      errors[error] = count;
      messages[error] = measures.first_messages[static_cast<size_t>(i)];
    }
  }
  return {{"finished", measures.requests},
          {"ok", measures.ok},
          {"errors", std::move(errors)},
          {"first_messages", std::move(messages)},
          {"injected_faults", measures.injected},
          {"retry_after_mean_s",
           measures.retry_after_count > 0
               ? Json(measures.retry_after_sum / static_cast<double>(measures.retry_after_count))
               : Json(nullptr)}};
}

Json answers_json(const Measures& measures) {
  const int64_t judged = measures.checked;
  return {{"checked", judged},
          {"correct", measures.correct},
          {"differs", measures.differs},
          {"missed", measures.missed},
          {"wrong", measures.wrong},
          {"correct_share", interval_json(share_interval(measures.correct, judged))}};
}

Json tokens_json(const Measures& measures) {
  const auto prompt = static_cast<double>(std::max<int64_t>(measures.prompt_tokens, 1));
  return {{"prompt", measures.prompt_tokens},
          {"cached", measures.cached_tokens},
          {"cached_share", static_cast<double>(measures.cached_tokens) / prompt},
          {"output", measures.output_tokens},
          {"kv_bytes_per_request", measures.kv_requests > 0
                                       ? Json(static_cast<double>(measures.kv_bytes) /
                                              static_cast<double>(measures.kv_requests))
                                       : Json(nullptr)}};
}

// Throughput with the interval of a bootstrap over the run's seconds.
Json rate_json(const RunStatistics& statistics, int64_t total,
               const std::function<double(const TimelineSecond&)>& of) {
  Interval rate{static_cast<double>(total) / statistics.seconds(), 0, 0};
  const auto first = static_cast<size_t>(std::ceil(statistics.warmup()));
  const auto& timeline = statistics.timeline();
  const size_t seconds = timeline.size() > first + 1 ? timeline.size() - first - 1 : 0;
  rate.low = rate.high = rate.value;
  if (seconds >= 2) {  // the last one is incomplete
    rate = bootstrap(
        seconds,
        [&](std::span<const size_t> drawn) {
          double sum = 0;
          for (const size_t second : drawn) sum += of(timeline[first + second]);
          return sum / static_cast<double>(drawn.size());
        },
        0);
    const double shift = static_cast<double>(total) / statistics.seconds() - rate.value;
    rate = {rate.value + shift, rate.low + shift, rate.high + shift};
  }
  return interval_json(rate);
}

Json throughput_json(const RunStatistics& statistics) {
  const Measures& all = statistics.all();
  return {{"requests_per_s",
           rate_json(statistics, all.ok,
                     [](const TimelineSecond& s) { return static_cast<double>(s.finished); })},
          {"output_tokens_per_s",
           rate_json(statistics, all.output_tokens,
                     [](const TimelineSecond& s) { return static_cast<double>(s.output_tokens); })},
          {"prompt_tokens_per_s", static_cast<double>(all.prompt_tokens) / statistics.seconds()}};
}

Json goodput_json(const RunStatistics& statistics) {
  if (statistics.slos().empty()) {
    return nullptr;
  }
  const Measures& all = statistics.all();
  Json limits = Json::array();
  for (const SloLimit& slo : statistics.slos()) {
    limits.push_back({{"slo", slo.text()},
                      {"measured", all.of(slo.measure).quantile(slo.share)},
                      {"limit", slo.seconds}});
  }
  return {{"slos", std::move(limits)},
          {"within_slos", statistics.within_slos()},
          {"share", interval_json(share_interval(all.within_slo, all.requests))},
          {"requests_per_s", static_cast<double>(all.within_slo) / statistics.seconds()}};
}

Json wrong_json(const std::vector<RequestRecord>& wrong, uint64_t seed) {
  Json list = Json::array();
  for (const RequestRecord& record : wrong) {
    list.push_back({{"request", record.number},
                    {"workload", record.workload},
                    {"verdict", name(record.verdict)},
                    {"why", record.why},
                    {"question", record.question},
                    {"answer", record.answer},
                    {"repeat", absl::StrCat("--seed ", seed, " --first-session ", record.session,
                                            " --requests ", record.turn + 1, " --concurrency 1")}});
  }
  return list;
}

Json timeline_json(const RunStatistics& statistics) {
  Json seconds = Json::array();
  for (const TimelineSecond& second : statistics.timeline()) {
    seconds.push_back({second.started, second.finished, second.failed, second.output_tokens,
                       second.ttft_count > 0
                           ? Json(second.ttft_sum / static_cast<double>(second.ttft_count))
                           : Json(nullptr)});
  }
  return {{"columns", {"started", "finished", "failed", "output_tokens", "mean_ttft_s"}},
          {"seconds", std::move(seconds)}};
}

Json optional_json(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json reading_json(const ServerReading& reading) {
  return {{"time", reading.time},
          {"running", optional_json(reading.running)},
          {"waiting", optional_json(reading.waiting)},
          {"kv_usage", optional_json(reading.kv_usage)},
          {"resident_bytes", optional_json(reading.resident_bytes)},
          {"kv_bytes", reading.kv_bytes}};
}

// A counter that is less than before belongs to a server that was started again.
std::optional<double> difference(const std::optional<double>& after,
                                 const std::optional<double>& before) {
  if (!after || !before) {
    return std::nullopt;
  }
  return *after < *before ? *after : *after - *before;
}

// Returns: bytes by which the server's memory grew from the end of the warm-up to the end.
std::optional<double> memory_growth(const Trial& trial) {
  const auto begin = std::find_if(trial.samples.begin(), trial.samples.end(), [&](const auto& at) {
    return at.time >= trial.statistics.warmup() && at.resident_bytes;
  });
  return trial.after.resident_bytes && begin != trial.samples.end()
             ? std::optional(*trial.after.resident_bytes - *begin->resident_bytes)
             : std::nullopt;
}

Json signals_json(const Trial& trial) {
  Json list = Json::array();
  for (const SentSignal& signal : trial.signals) {
    list.push_back({{"signal", signal_name(signal.number)},
                    {"process", signal.process.number},
                    {"sent", signal.sent},
                    {"ended", signal.ended},
                    {"answered", signal.answered}});
  }
  return list;
}

Json server_json(const Trial& trial) {
  Json samples = Json::array();
  // A run may end before the first sample.
  double most_kv = std::max(trial.before.kv_bytes_total(), trial.after.kv_bytes_total());
  double most_waiting = 0;
  for (const ServerReading& sample : trial.samples) {
    samples.push_back(reading_json(sample));
    most_kv = std::max(most_kv, sample.kv_bytes_total());
    most_waiting = std::max(most_waiting, sample.waiting.value_or(0));
  }
  const auto queries = difference(trial.after.prefix_queries, trial.before.prefix_queries);
  const auto hits = difference(trial.after.prefix_hits, trial.before.prefix_hits);
  return {
      {"idle_again", trial.left_behind.empty()},
      {"left_behind", trial.left_behind},
      {"gone", trial.gone},
      {"signals", signals_json(trial)},
      {"memory_growth_bytes", optional_json(memory_growth(trial))},
      {"prefix_hit_rate", queries && hits && *queries > 0 ? Json(*hits / *queries) : Json(nullptr)},
      {"preemptions", optional_json(difference(trial.after.preemptions, trial.before.preemptions))},
      {"kv_tightenings",
       optional_json(difference(trial.after.tightenings, trial.before.tightenings))},
      {"most_kv_bytes", most_kv},
      {"most_waiting", most_waiting},
      {"before", reading_json(trial.before)},
      {"after", reading_json(trial.after)},
      {"samples", std::move(samples)}};
}

}  // namespace

std::vector<std::string> failures_of(const Trial& trial, const LoadOptions& options) {
  const Measures& all = trial.statistics.all();
  std::vector<std::string> failures;
  if (all.wrong > 0) {
    failures.push_back(absl::StrCat(all.wrong, " answers are wrong"));
  }
  const double kept =
      all.checked > 0 ? 1 - static_cast<double>(all.missed) / static_cast<double>(all.checked) : 1;
  if (kept < options.min_correct) {
    failures.push_back(absl::StrFormat("%d of %d checked answers were missed (--min-correct %g)",
                                       all.missed, all.checked, options.min_correct));
  }
  for (const ErrorClass error : {ErrorClass::cut_short, ErrorClass::malformed}) {
    if (const int64_t count = all.errors[static_cast<size_t>(error)]; count > 0) {
      failures.push_back(absl::StrCat(count, " streams were ", std::string(name(error))));
    }
  }
  if (!trial.left_behind.empty()) {
    failures.push_back(absl::StrCat("after the run ", trial.left_behind));
  }
  if (trial.signals.size() < options.signals.size()) {
    failures.push_back(absl::StrCat("the run ended before ",
                                    options.signals.size() - trial.signals.size(),
                                    " signals of --kill"));
  }
  if (options.max_growth) {
    const std::optional<double> growth = memory_growth(trial);
    if (!growth) {
      failures.push_back("--max-growth: the server's memory could not be read twice");
    } else if (*growth > *options.max_growth) {
      failures.push_back(absl::StrFormat("the server's memory grew by %.1f MiB (--max-growth %g)",
                                         *growth / (1 << 20), *options.max_growth / (1 << 20)));
    }
  }
  if (all.requests > 0 && all.ok == 0) {
    failures.push_back("no request succeeded");
  }
  return failures;
}

Json report_json(const LoadOptions& options, const LoadRun& run, const Trial& trial) {
  const RunStatistics& statistics = trial.statistics;
  const Measures& all = statistics.all();
  Json workloads = Json::object();
  for (const auto& [workload, measures] : statistics.by_workload()) {
    workloads[workload] = {{"requests", requests_json(measures)},
                           {"answers", answers_json(measures)},
                           {"tokens", tokens_json(measures)},
                           {"latency", latency_json(measures, options.seed)}};
  }
  Json report = {
      {"tool", "tessera-load " TESSERA_VERSION},
      {"command", options.command},
      {"url", options.url},
      {"model", run.model()},
      {"tokens_per_word", run.traits().tokens_per_word},
      {"machine", describe_machine()},
      {"seed", options.seed},
      {"rate", trial.rate > 0 ? Json(trial.rate) : Json(nullptr)},
      {"concurrency", options.concurrency > 0 ? Json(options.concurrency) : Json(nullptr)},
      {"interrupted", trial.interrupted},
      {"seconds", statistics.seconds()},
      {"client_cpu_seconds", trial.client_cpu_seconds},
      {"failures", failures_of(trial, options)}};
  report["requests"] = requests_json(all);
  report["answers"] = answers_json(all);
  report["tokens"] = tokens_json(all);
  report["throughput"] = throughput_json(statistics);
  report["goodput"] = goodput_json(statistics);
  report["latency"] = latency_json(all, options.seed);
  report["workloads"] = std::move(workloads);
  report["failed_checks"] = wrong_json(statistics.wrong(), options.seed);
  report["server"] = server_json(trial);
  report["timeline"] = timeline_json(statistics);
  return report;
}

Json point_json(const Json& report, bool passed) {
  return {{"rate", report["rate"]},
          {"passed", passed},
          {"ttft_p90", report["latency"]["ttft"]["p90"]},
          {"tpot_p90", report["latency"]["tpot"]["p90"]},
          {"goodput", report["goodput"]},
          {"errors", report["requests"]["errors"]},
          {"answers", report["answers"]},
          {"cached_share", report["tokens"]["cached_share"]},
          {"kv_bytes_per_request", report["tokens"]["kv_bytes_per_request"]},
          {"most_kv_bytes", report["server"]["most_kv_bytes"]}};
}

}  // namespace tessera::load
