#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "eval/score/report.h"

namespace tessera {

// Returns: the value with the decimals of the metric: "97.5", "1.2e-05".
std::string print_value(const MetricReport& metric, double value);

// For a terminal: one aligned table for each task, then the verdicts.
std::string print_table(const Report& report);

// All results, for programs. docs/howto/evaluate.md describes the scores.
std::string print_json(const Report& report);

// One line for each task, metric and subject.
std::string print_csv(const Report& report);

// One self-contained page: plots, tables, and the meaning of every number.
std::string print_html(const Report& report);

// Errors: Internal, with the name of the file that cannot be written.
absl::Status save_file(const std::filesystem::path& file, const std::string& text);

}  // namespace tessera
