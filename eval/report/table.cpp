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

std::string verdict(const std::optional<Judgement>& judgement) {
  return judgement ? std::string(name_of(judgement->verdict)) : "-";
}

constexpr size_t kColumns = 4;  // subjects of one table

// Prints the columns of subjects [first, end).
std::string print_columns(const Report& report, const TaskReport& task, size_t first, size_t end) {
  std::vector<Row> rows(task.metrics.size() + 3);
  rows.front() = {""};
  for (size_t m = 0; m < task.metrics.size(); ++m) {
    const MetricReport& metric = task.metrics[m];
    rows[m + 1] = {metric.unit.empty() ? metric.name
                                       : absl::StrCat(metric.name, ", ", metric.unit)};
  }
  rows[rows.size() - 2] = {"KV bytes/token, measured"};
  rows.back() = {"verdict"};
  for (size_t s = first; s < end; ++s) {
    rows.front().push_back(report.subjects[s].name);
    for (size_t m = 0; m < task.metrics.size(); ++m) {
      rows[m + 1].push_back(cell(task.metrics[m], task.metrics[m].subjects[s]));
    }
    rows[rows.size() - 2].push_back(
        task.kv[s] ? absl::StrFormat("%.0f", task.kv[s]->bytes_per_token()) : "-");
    rows.back().push_back(verdict(task.judgements[s]));
  }
  return align(rows);
}

// Names the lengths whose answers do not count.
std::string print_qualifications(const TaskReport& task) {
  std::string text;
  for (const Qualification& length : task.qualifications) {
    if (!length.counts) {
      absl::StrAppend(&text, "  answers do not count",
                      length.length > 0 ? absl::StrCat(" at ", length.length, " tokens") : "",
                      absl::StrFormat(": the reference answers %.0f %%\n", 100 * length.accuracy));
    }
  }
  return text;
}

std::string print_verdicts(const Report& report) {
  std::vector<Row> rows = {
      {"preset", "KV bytes/token", "of f16", "mean KL", "accuracy", "verdict"}};
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
                    verdict(subject.judgement)});
  }
  std::string text = absl::StrCat("summary\n", align(rows));
  for (const SubjectReport& subject : report.subjects) {
    if (subject.judgement) {
      absl::StrAppend(&text, "  ", subject.name, ": ", subject.judgement->reason, "\n");
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
  std::string text =
      absl::StrCat(report.model, " on ", report.device, ", weights ", report.weights, ", seed ",
                   report.seed, report.split.empty() ? "" : ", split ", report.split, "\n\n");
  for (const TaskReport& task : report.tasks) {
    absl::StrAppend(&text, task.name, ": ", task.description, " (", task.items, " items");
    if (task.left_out > 0) {
      absl::StrAppend(&text, ", ", task.left_out, " too long");
    }
    absl::StrAppend(&text, ")\n", print_qualifications(task));
    for (size_t first = 0; first < report.subjects.size(); first += kColumns) {
      const size_t end = std::min(first + kColumns, report.subjects.size());
      absl::StrAppend(&text, print_columns(report, task, first, end), "\n");
    }
  }
  return absl::StrCat(text, print_verdicts(report),
                      absl::StrFormat("CPU time: %.2f hours\n", report.cpu_seconds / 3600));
}

}  // namespace tessera
