#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/run/load_run.h"
#include "load/run/options.h"

namespace tessera::load {

// Returns: reasons why the run failed: wrong answers, broken streams, a server that still holds
// something. Empty: it passed.
std::vector<std::string> failures_of(const Trial& trial, const LoadOptions& options);

// The report as one document: the JSON file, and the source of the HTML and of comparisons.
nlohmann::ordered_json report_json(const LoadOptions& options, const LoadRun& run,
                                   const Trial& trial);

// Returns: the part of a report that belongs to one rate of several.
nlohmann::ordered_json point_json(const nlohmann::ordered_json& report, bool passed);

// A report of several rates, with the label of its curve.
struct LabelledReport {
  std::string label;
  nlohmann::json report;
};

// Returns: one self-contained page with TTFT, correct answers and KV bytes by rate, a curve for
// each report, and the commands and machines of the reports.
// Errors: InvalidArgument (not a report of --rates or --sweep).
absl::StatusOr<std::string> print_curves(const std::vector<LabelledReport>& reports);

// Returns: the report as lines for a terminal.
std::string print_text(const nlohmann::ordered_json& report);

// Returns: one self-contained page with plots.
std::string print_html(const nlohmann::ordered_json& report);

// Returns: ratios of b to a with their 95 % intervals, as lines for a terminal.
// Errors: InvalidArgument (not reports of this tool).
absl::StatusOr<std::string> compare_reports(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace tessera::load
