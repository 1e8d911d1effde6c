#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "eval/report/writers.h"

namespace tessera {
namespace {

using Row = std::vector<std::string>;

// Aligns columns to their widest cell. The first is aligned left, the others right.
std::string align(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      absl::StrAppend(&line, c == 0 ? "  " : "   ", c == 0 ? row[c] : padding,
                      c == 0 ? padding : row[c]);
    }
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string cell(const MetricReport& metric, const std::optional<Interval>& score) {
  if (!score) {
    return "-";
  }
  return absl::StrCat(print_value(metric, score->value), " [", print_value(metric, score->low),
                      ", ", print_value(metric, score->high), "]");
}

constexpr size_t kColumns = 4;  // subjects of one table

// Prints the columns of subjects [first, end).
std::string print_columns(const Report& report, const TaskReport& task, size_t first, size_t end) {
  std::vector<Row> rows(task.metrics.size() + 2);
  rows.front() = {""};
  for (size_t m = 0; m < task.metrics.size(); ++m) {
    const MetricReport& metric = task.metrics[m];
    rows[m + 1] = {metric.unit.empty() ? metric.name
                                       : absl::StrCat(metric.name, ", ", metric.unit)};
  }
  rows.back() = {"KV bytes/token, measured"};
  for (size_t s = first; s < end; ++s) {
    rows.front().push_back(report.subjects[s].name);
    for (size_t m = 0; m < task.metrics.size(); ++m) {
      rows[m + 1].push_back(cell(task.metrics[m], task.metrics[m].subjects[s]));
    }
    rows.back().push_back(task.kv[s] ? absl::StrFormat("%.0f", task.kv[s]->bytes_per_token())
                                     : "-");
  }
  return align(rows);
}

std::string verdict(const SubjectReport& subject) {
  if (!subject.lossless) {
    return subject.kl ? "?" : "-";
  }
  return *subject.lossless ? "yes" : "no";
}

std::string print_verdicts(const Report& report) {
  std::vector<Row> rows = {
      {"preset", "KV bytes/token", "of f16", "mean KL", "accuracy", "lossless"}};
  const std::optional<KvReport>& reference = report.subjects[0].kv;
  rows[0][2] = absl::StrCat("of ", report.subjects[0].name);
  for (const SubjectReport& subject : report.subjects) {
    const bool has_kv = subject.kv && reference;
    rows.push_back({subject.name,
                    has_kv ? absl::StrFormat("%.0f", subject.kv->bytes_per_token()) : "-",
                    has_kv ? absl::StrFormat("%.1f %%", 100 * subject.kv->bytes_per_token() /
                                                            reference->bytes_per_token())
                           : "-",
                    subject.kl ? absl::StrFormat("%.2g", *subject.kl) : "-",
                    subject.accuracy ? absl::StrFormat("%.1f %%", 100 * *subject.accuracy) : "-",
                    verdict(subject)});
  }
  std::string text = absl::StrCat("summary\n", align(rows));
  for (const SubjectReport& subject : report.subjects) {
    if (!subject.reason.empty()) {
      absl::StrAppend(&text, "  ", subject.name, ": ", subject.reason, "\n");
    }
  }
  return text;
}

}  // namespace

std::string print_value(const MetricReport& metric, double value) {
  if (metric.decimals >= 0) {
    return absl::StrFormat("%.*f", metric.decimals, value);
  }
  return value == 0 ? "0" : absl::StrFormat("%.2e", value);
}

std::string print_table(const Report& report) {
  std::string text = absl::StrCat(report.model, " on ", report.device, ", weights ", report.weights,
                                  ", seed ", report.seed, "\n\n");
  for (const TaskReport& task : report.tasks) {
    absl::StrAppend(&text, task.name, ": ", task.description, " (", task.items, " items");
    if (task.left_out > 0) {
      absl::StrAppend(&text, ", ", task.left_out, " too long");
    }
    absl::StrAppend(&text, ")\n");
    for (size_t first = 0; first < report.subjects.size(); first += kColumns) {
      const size_t end = std::min(first + kColumns, report.subjects.size());
      absl::StrAppend(&text, print_columns(report, task, first, end), "\n");
    }
  }
  return absl::StrCat(text, print_verdicts(report));
}

}  // namespace tessera
