#include "load/load.h"

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "load/report/report.h"
#include "load/run/load_run.h"
#include "load/run/sweep.h"
#include "models/status_macros.h"

namespace tessera::load {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> run_sweep(const LoadOptions& options, LoadRun& run) {
  Json report;
  Json points = Json::array();
  Json failures = Json::array();
  const auto passes = [&](double rate) -> absl::StatusOr<bool> {
    TESSERA_ASSIGN_OR_RETURN(const Trial trial, run.trial(rate));
    Json now = report_json(options, run, trial);
    const bool passed = now["failures"].empty() && trial.statistics.within_slos() &&
                        trial.statistics.all().ok == trial.statistics.all().requests;
    std::fprintf(stderr, "%g requests/s: %s\n", rate, passed ? "within the SLOs" : "not");
    points.push_back({{"rate", rate},
                      {"passed", passed},
                      {"ttft_p90", now["latency"]["ttft"]["p90"]["value"]},
                      {"tpot_p90", now["latency"]["tpot"]["p90"]["value"]},
                      {"goodput", now["goodput"]},
                      {"answers", now["answers"]},
                      {"most_kv_bytes", now["server"]["most_kv_bytes"]}});
    for (const Json& failure : now["failures"]) {
      failures.push_back(absl::StrCat("at ", rate, " requests/s: ", failure.get<std::string>()));
    }
    if (passed || report.is_null()) report = std::move(now);
    if (trial.interrupted) return absl::CancelledError("interrupted");
    return passed;
  };
  TESSERA_ASSIGN_OR_RETURN(const Sweep sweep,
                           bisect_rate(options.sweep->low, options.sweep->high, passes));
  add_sweep(report, sweep);
  report["sweep"]["points"] = std::move(points);
  report["failures"] = std::move(failures);
  return report;
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
  TESSERA_ASSIGN_OR_RETURN(const Trial trial, run->trial(options.rate.value_or(0)));
  return report_json(options, *run, trial);
}

absl::Status write_reports(const LoadOptions& options, const Json& report) {
  TESSERA_RETURN_IF_ERROR(
      write_file(options.json, report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"));
  return options.html.empty() ? absl::OkStatus() : write_file(options.html, print_html(report));
}

absl::StatusOr<nlohmann::json> read_report(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path.string()));
  }
  nlohmann::json report = nlohmann::json::parse(file, nullptr, false);
  if (!report.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not a report"));
  }
  return report;
}

}  // namespace tessera::load
