#pragma once

#include <string>

#include "eval/report/report.h"

namespace tessera {

// "97.5", "1.2e-05", with the decimals of the metric.
std::string print_value(const MetricReport& metric, double value);

// For a terminal: one aligned table for each task, then the verdicts.
std::string print_table(const Report& report);

// Everything, for programs; the schema is described in eval/README.md.
std::string print_json(const Report& report);

// One line for each task, metric and subject.
std::string print_csv(const Report& report);

// One page that needs nothing else: plots, tables, and what every number means.
std::string print_html(const Report& report);

}  // namespace tessera
