#include "load/load.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "load/report/report.h"
#include "load/request/json_text.h"
#include "load/run/load_run.h"
#include "load/run/sweep.h"

namespace tessera::load {
namespace {

using Json = nlohmann::ordered_json;

// One run at `rate`: its report, and whether it passed and held the SLOs.
struct RateResult {
  Json report;
  bool passed = false;
};

absl::StatusOr<RateResult> run_rate(const LoadOptions& options, LoadRun& run, double rate) {
  TESSERA_ASSIGN_OR_RETURN(const Trial trial, run.trial(rate));
  RateResult result{report_json(options, run, trial)};
  result.passed = result.report["failures"].empty() && trial.statistics.within_slos() &&
                  trial.statistics.all().ok == trial.statistics.all().requests;
  std::fprintf(stderr, "%g requests/s: %s\n", rate, result.passed ? "passed" : "failed");
  if (trial.interrupted) return absl::CancelledError("interrupted");
  return result;
}

// Reports of several rates, put together. The body is that of the last rate that passed, or else of
// the first.
class RatesReport {
 public:
  void add(RateResult result) {
    Json& now = result.report;
    points_.push_back(point_json(now, result.passed));
    for (const Json& failure : now["failures"]) {
      failures_.push_back(absl::StrCat("at ", now["rate"].get<double>(),
                                       " requests/s: ", failure.get<std::string>()));
    }
    if (result.passed || body_.is_null()) body_ = std::move(now);
  }

  Json finish() && {
    body_["sweep"]["points"] = std::move(points_);
    body_["failures"] = std::move(failures_);
    return std::move(body_);
  }

 private:
  Json body_;
  Json points_ = Json::array();
  Json failures_ = Json::array();
};

absl::StatusOr<Json> run_rates(const LoadOptions& options, LoadRun& run) {
  RatesReport report;
  for (const double rate : options.rates) {
    TESSERA_ASSIGN_OR_RETURN(RateResult result, run_rate(options, run, rate));
    report.add(std::move(result));
  }
  return std::move(report).finish();
}

absl::StatusOr<Json> run_sweep(const LoadOptions& options, LoadRun& run) {
  RatesReport report;
  const auto passes = [&](double rate) -> absl::StatusOr<bool> {
    TESSERA_ASSIGN_OR_RETURN(RateResult result, run_rate(options, run, rate));
    const bool passed = result.passed;
    report.add(std::move(result));
    return passed;
  };
  TESSERA_ASSIGN_OR_RETURN(const Sweep sweep,
                           bisect_rate(options.sweep->low, options.sweep->high, passes));
  Json complete = std::move(report).finish();
  complete["sweep"]["highest_rate"] = sweep.highest;
  complete["sweep"]["lowest_failed_rate"] = sweep.lowest_failed;
  return complete;
}

absl::Status write_file(const std::filesystem::path& path, const std::string& text) {
  if (path.empty()) {
    return absl::OkStatus();
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  return file.flush() ? absl::OkStatus()
                      : absl::InternalError(absl::StrCat("cannot write ", path.string()));
}

}  // namespace

absl::StatusOr<Json> run_load(const LoadOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<LoadRun> run, LoadRun::prepare(options));
  if (options.sweep) {
    return run_sweep(options, *run);
  }
  if (!options.rates.empty()) {
    return run_rates(options, *run);
  }
  TESSERA_ASSIGN_OR_RETURN(const Trial trial, run->trial(options.rate.value_or(0)));
  return report_json(options, *run, trial);
}

absl::Status write_reports(const LoadOptions& options, const Json& report) {
  TESSERA_RETURN_IF_ERROR(write_file(options.json, print_lines(report)));
  return options.html.empty() ? absl::OkStatus() : write_file(options.html, print_html(report));
}

absl::StatusOr<nlohmann::json> read_report(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path.string()));
  }
  nlohmann::json report = parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  if (!report.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not a report"));
  }
  return report;
}

absl::Status draw_curves(const std::vector<std::string>& labelled,
                         const std::filesystem::path& html) {
  std::vector<LabelledReport> reports;
  for (const std::string& text : labelled) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not LABEL=FILE"));
    }
    TESSERA_ASSIGN_OR_RETURN(nlohmann::json report, read_report(text.substr(equals + 1)));
    reports.push_back({text.substr(0, equals), std::move(report)});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string page, print_curves(reports));
  return write_file(html, page);
}

}  // namespace tessera::load
