#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "load/report/report.h"

namespace tessera::load {
namespace {

using nlohmann::json;

struct Distribution {
  Histogram histogram;
  int64_t independent = 0;
};

// A report's histogram holds the values of its buckets.
Distribution read_distribution(const json& measure) {
  Distribution read;
  for (const json& bucket : measure.at("histogram")) {
    read.histogram.add(bucket.at(0).get<double>(), bucket.at(1).get<int64_t>());
  }
  read.independent = measure.at("independent").get<int64_t>();
  return read;
}

// Returns: the ratio of the quantiles, with the percentile interval of independent draws of both.
Interval ratio_of(const Distribution& a, const Distribution& b, double q) {
  Variates variates(0);
  std::vector<double> ratios(kBootstrapDraws);
  for (double& ratio : ratios) {
    ratio = b.histogram.resampled_quantile(q, b.independent, variates) /
            a.histogram.resampled_quantile(q, a.independent, variates);
  }
  const double value = b.histogram.quantile(q) / a.histogram.quantile(q);
  constexpr double kTail = (1 - kConfidence) / 2;
  return {value, std::min(value, quantile(ratios, kTail)),
          std::max(value, quantile(ratios, 1 - kTail))};
}

void append_ratio(std::string& text, const std::string& label, double a, double b,
                  const Interval& ratio) {
  const char* verdict = ratio.contains(1) ? "" : ratio.value < 1 ? "  less" : "  more";
  absl::StrAppendFormat(&text, "%-22s %12.2f %12.2f   %.3f [%.3f, %.3f]%s\n", label, a, b,
                        ratio.value, ratio.low, ratio.high, verdict);
}

// Throughput has intervals of its own; their ends bound the ratio.
void append_rate(std::string& text, const std::string& label, const json& a, const json& b) {
  const auto of = [](const json& rate, const char* name) { return rate.at(name).get<double>(); };
  if (of(a, "value") <= 0 || of(a, "low") <= 0) {
    return;
  }
  append_ratio(text, label, of(a, "value"), of(b, "value"),
               {of(b, "value") / of(a, "value"), of(b, "low") / of(a, "high"),
                of(b, "high") / of(a, "low")});
}

std::string print_comparison(const json& a, const json& b) {
  std::string text = absl::StrFormat("%-22s %12s %12s   b / a, 95 %% interval\n", "", "a", "b");
  for (const char* measure : {"ttft", "itl", "tpot", "e2e"}) {
    const Distribution of_a = read_distribution(a.at("latency").at(measure));
    const Distribution of_b = read_distribution(b.at("latency").at(measure));
    if (of_a.independent == 0 || of_b.independent == 0) {
      continue;
    }
    for (const double percent : {50.0, 90.0, 99.0}) {
      const double q = percent / 100;
      append_ratio(text, absl::StrFormat("%s p%g, ms", measure, percent),
                   1e3 * of_a.histogram.quantile(q), 1e3 * of_b.histogram.quantile(q),
                   ratio_of(of_a, of_b, q));
    }
  }
  for (const char* rate : {"requests_per_s", "output_tokens_per_s"}) {
    append_rate(text, rate, a.at("throughput").at(rate), b.at("throughput").at(rate));
  }
  if (a.at("answers").at("checked") > 0 && b.at("answers").at("checked") > 0) {
    append_rate(text, "correct_share", a.at("answers").at("correct_share"),
                b.at("answers").at("correct_share"));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> compare_reports(const json& a, const json& b) {
  try {
    return print_comparison(a, b);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("these are not two reports of tessera-load: ", error.what()));
  }
}

}  // namespace tessera::load
