#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "eval/measurement/svg.h"
#include "eval/report/explanations.h"
#include "eval/report/plots.h"
#include "eval/report/writers.h"

namespace tessera {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #22262b;
  background: #fbfbf9; margin: 0 auto; padding: 28px 32px 60px; max-width: 1120px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 38px 0 4px; }
h3 { font-size: 14px; margin: 0 0 4px; font-weight: 600; }
p { margin: 4px 0 12px; max-width: 76ch; } .faint { color: #6a6f76; }
table { border-collapse: collapse; margin: 10px 0 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 14px 5px 0; text-align: right; border-bottom: 1px solid #e4e4e0;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.open td { border-bottom: none; padding-bottom: 0; }
td.why { white-space: normal; padding: 0 0 6px 17px; font-size: 12.5px; color: #6a6f76; }
th { font-weight: 600; color: #4b5158; border-bottom-color: #b9b9b2; }
.interval { display: block; color: #868b92; font-size: 12px; line-height: 1.2; }
.wide { overflow-x: auto; }
.lossless, .near { color: #00785a; font-weight: 600; } .no { color: #b3430b; font-weight: 600; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 7px; }
.plots { display: flex; flex-wrap: wrap; gap: 20px; margin: 14px 0; }
.plot { background: #fff; border: 1px solid #e4e4e0; border-radius: 8px; padding: 14px 14px 8px; }
svg { display: block; max-width: 100%; height: auto;
  font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
svg .tick { font-size: 12px; fill: #5b6067; } svg .axis { font-size: 12.5px; fill: #33383d; }
svg .label { font-size: 12px; fill: #22262b; font-weight: 600; paint-order: stroke;
  stroke: #fff; stroke-width: 3.5px; stroke-linejoin: round; }
svg .cell { font-size: 11.5px; fill: #33383d; } svg .light { fill: #fff; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
dt { font-weight: 600; } dd { margin: 0 0 8px; max-width: 76ch; }
)";

std::string subject_name(const Report& report, size_t place) {
  return absl::StrCat("<span class=\"dot\" style=\"background:", subject_color(place), "\"></span>",
                      escape_markup(report.subjects[place].name));
}

std::string framed(const std::string& title, const std::string& plot) {
  return plot.empty()
             ? ""
             : absl::StrCat("<div class=\"plot\"><h3>", title, "</h3>\n", plot, "</div>\n");
}

std::string verdict(const SubjectReport& subject, bool reference) {
  if (reference) return "reference";
  if (!subject.judgement) return "-";
  const std::string name(name_of(subject.judgement->verdict));
  return absl::StrCat("<span class=\"", name, "\">", name, "</span>");
}

// Returns: description of a preset, and the reason for its verdict.
std::string why(const SubjectReport& subject) {
  const std::string reason = subject.judgement ? subject.judgement->reason : "";
  const char* const between = subject.description.empty() || reason.empty() ? "" : "; ";
  return escape_markup(absl::StrCat(subject.description, between, reason));
}

std::string summary(const Report& report) {
  std::string html =
      "<table><tr><th>preset</th><th>KV bytes/token</th><th>of reference</th><th>mean KL, nats</th>"
      "<th>mean accuracy</th><th>verdict</th></tr>\n";
  const std::optional<KvReport>& reference = report.subjects[0].kv;
  for (size_t s = 0; s < report.subjects.size(); ++s) {
    const SubjectReport& subject = report.subjects[s];
    const bool measured = subject.kv && reference;
    absl::StrAppend(&html, "<tr class=\"open\"><td>", subject_name(report, s), "</td><td>",
                    measured ? absl::StrFormat("%.0f", subject.kv->bytes_per_token()) : "-",
                    "</td><td>",
                    measured ? absl::StrFormat("%.1f %%", 100 * subject.kv->bytes_per_token() /
                                                              reference->bytes_per_token())
                             : "-");
    absl::StrAppend(
        &html, "</td><td>", subject.kl ? absl::StrFormat("%.2g", *subject.kl) : "-", "</td><td>",
        subject.accuracy ? absl::StrFormat("%.1f %%", 100 * *subject.accuracy) : "-", "</td><td>",
        verdict(subject, s == 0), "</td></tr>\n<tr><td class=\"why\" colspan=\"6\">", why(subject),
        "</td></tr>\n");
  }
  return html + "</table>\n";
}

std::string metric_table(const Report& report, const TaskReport& task) {
  std::string html = "<div class=\"wide\"><table><tr><th></th>";
  for (size_t s = 0; s < report.subjects.size(); ++s) {
    absl::StrAppend(&html, "<th>", subject_name(report, s), "</th>");
  }
  absl::StrAppend(&html, "</tr>\n");
  for (const MetricReport& metric : task.metrics) {
    absl::StrAppend(&html, "<tr><td title=\"", escape_markup(explain_metric(metric.name)), "\">",
                    escape_markup(metric.name), metric.unit.empty() ? "" : ", ", metric.unit,
                    "</td>");
    for (const std::optional<Interval>& score : metric.subjects) {
      absl::StrAppend(&html, "<td>");
      if (score) {
        absl::StrAppend(&html, print_value(metric, score->value), " <span class=\"interval\">",
                        print_value(metric, score->low), " &ndash; ",
                        print_value(metric, score->high), "</span>");
      } else {
        absl::StrAppend(&html, "-");
      }
      absl::StrAppend(&html, "</td>");
    }
    absl::StrAppend(&html, "</tr>\n");
  }
  absl::StrAppend(&html, "<tr><td>KV bytes/token, measured</td>");
  for (const std::optional<KvReport>& kv : task.kv) {
    absl::StrAppend(&html, "<td>", kv ? absl::StrFormat("%.0f", kv->bytes_per_token()) : "-",
                    "</td>");
  }
  return html + "</tr>\n</table></div>\n";
}

std::string task_section(const Report& report, const TaskReport& task) {
  std::string html = absl::StrCat("<h2>", escape_markup(task.name), "</h2>\n<p class=\"faint\">",
                                  escape_markup(task.description), "; ", task.items, " items");
  if (task.left_out > 0) {
    absl::StrAppend(&html, ", ", task.left_out, " too long for the context");
  }
  absl::StrAppend(&html, ".</p>\n", metric_table(report, task));
  std::string plots;
  if (task.grid) {
    for (size_t s = 0; s < report.subjects.size(); ++s) {
      absl::StrAppend(&plots, framed(subject_name(report, s), plot_grid(*task.grid, s)));
    }
    absl::StrAppend(&html, plot_share_scale("right answers"));
  }
  if (task.course) {
    absl::StrAppend(&plots, framed("Distance along the text", plot_course(report, *task.course)));
  }
  return absl::StrCat(html, "<div class=\"plots\">\n", plots, "</div>\n");
}

std::string kept_section(const Report& report) {
  std::string plots;
  for (size_t s = 0; s < report.subjects.size(); ++s) {
    if (report.subjects[s].kept) {
      absl::StrAppend(&plots, framed(subject_name(report, s), plot_kept(*report.subjects[s].kept)));
    }
  }
  return plots.empty() ? ""
                       : absl::StrCat("<h2>Tokens kept, by layer and KV head</h2>\n",
                                      plot_share_scale("tokens kept"), "<div class=\"plots\">\n",
                                      plots, "</div>\n");
}

std::string manual() {
  std::string html = "<h2>What the numbers mean</h2>\n<dl>\n";
  for (const Explanation& entry : explanations()) {
    absl::StrAppend(&html, "<dt>", escape_markup(entry.name), "</dt><dd>",
                    escape_markup(entry.meaning), "</dd>\n");
  }
  return html + "</dl>\n";
}

}  // namespace

std::string print_html(const Report& report) {
  std::string html = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>KV cache "
      "quality of ",
      escape_markup(report.model), "</title>\n<style>", std::string(kStyle),
      "</style></head>\n<body>\n");
  absl::StrAppend(
      &html, "<h1>KV cache quality of ", escape_markup(report.model), "</h1>\n<p class=\"faint\">",
      escape_markup(report.device), ", weights ", report.weights, ", seed ", report.seed, ", ",
      absl::StrFormat("%.0f s, %.2f CPU hours", report.seconds, report.cpu_seconds / 3600),
      ". Intervals hold 95 % of 1000 bootstrap draws.</p>\n", summary(report));
  absl::StrAppend(&html, "<div class=\"plots\">\n",
                  framed("Distance from the reference", plot_kl_frontier(report)),
                  framed("Right answers", plot_accuracy_frontier(report)), "</div>\n",
                  kept_section(report));
  for (const TaskReport& task : report.tasks) {
    absl::StrAppend(&html, task_section(report, task));
  }
  return absl::StrCat(html, manual(), "</body></html>\n");
}

}  // namespace tessera
