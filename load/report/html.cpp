#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "eval/measurement/svg.h"
#include "load/report/page.h"
#include "load/report/plots.h"
#include "load/report/report.h"

namespace tessera::load {
namespace {

using Json = nlohmann::ordered_json;

std::string verdict(const Json& report) {
  if (report["failures"].empty()) {
    return "<p class=\"yes\">passed</p>\n";
  }
  std::string html;
  for (const Json& failure : report["failures"]) {
    absl::StrAppend(&html, "<p class=\"no\">failed: ", escape_markup(failure.get<std::string>()),
                    "</p>\n");
  }
  return html;
}

std::string counts(const Json& report) {
  const Json& throughput = report["throughput"];
  std::string html = "<table>\n";
  absl::StrAppend(
      &html, table_row({"requests", absl::StrCat(report["requests"]["finished"].get<int64_t>())}),
      table_row({"ok", absl::StrCat(report["requests"]["ok"].get<int64_t>())}));
  for (const auto& [error, count] : report["requests"]["errors"].items()) {
    absl::StrAppend(&html, table_row({escape_markup(error), absl::StrCat(count.get<int64_t>())}));
  }
  for (const char* rate : {"requests_per_s", "output_tokens_per_s"}) {
    absl::StrAppend(
        &html, table_row({rate, absl::StrFormat("%.2f", throughput[rate]["value"].get<double>())}));
  }
  const Json& answers = report["answers"];
  for (const char* kind : {"checked", "correct", "differs", "missed", "wrong"}) {
    absl::StrAppend(&html, table_row({absl::StrCat("answers ", kind),
                                      absl::StrCat(answers[kind].get<int64_t>())}));
  }
  return html + "</table>\n";
}

std::string latency_table(const Json& latency) {
  std::string html =
      "<table><tr><th>ms</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th>"
      "</tr>\n";
  for (const auto& [name, measure] : latency.items()) {
    if (measure["count"] == 0) continue;
    std::vector<std::string> cells = {name,
                                      absl::StrFormat("%.1f", 1e3 * measure["mean"].get<double>())};
    for (const char* percentile : {"p50", "p90", "p99", "p99.9"}) {
      const Json& at = measure[percentile];
      cells.push_back(absl::StrFormat(
          "%.1f<span class=\"interval\">%.1f &ndash; %.1f</span>", 1e3 * at["value"].get<double>(),
          1e3 * at["low"].get<double>(), 1e3 * at["high"].get<double>()));
    }
    absl::StrAppend(&html, table_row(cells));
  }
  return html + "</table>\n";
}

std::string failed_checks(const Json& report) {
  if (report["failed_checks"].empty()) {
    return "";
  }
  std::string html =
      "<h2>Failed checks</h2>\n<table><tr><th>request</th><th>why</th><th>answer</th>"
      "<th>repeat with</th></tr>\n";
  for (const Json& failed : report["failed_checks"]) {
    absl::StrAppend(&html, "<tr><td>", failed["request"].get<int64_t>(), "</td><td class=\"text\">",
                    escape_markup(failed["why"].get<std::string>()), "</td><td class=\"text\">",
                    escape_markup(failed["answer"].get<std::string>()), "</td><td class=\"text\">",
                    escape_markup(failed["repeat"].get<std::string>()), "</td></tr>\n");
  }
  return html + "</table>\n";
}

}  // namespace

std::string print_html(const Json& report) {
  std::string html = open_page(absl::StrCat("Load on ", report["model"].get<std::string>()),
                               absl::StrCat(report["command"].get<std::string>(), " (",
                                            report["machine"].get<std::string>(), ")"));
  absl::StrAppend(&html, verdict(report), counts(report), "<h2>Latency</h2>\n",
                  "<p class=\"faint\">From the intended start of each request; 95 % bootstrap "
                  "intervals.</p>\n",
                  latency_table(report["latency"]), "<div class=\"plots\">\n",
                  framed("Latency by percentile", plot_percentiles(report)),
                  framed("Requests by second", plot_timeline(report)),
                  framed("KV cache in use", plot_kv_bytes(report)),
                  framed("Sweep: TTFT p90 by rate", plot_sweep(report)), "</div>\n",
                  failed_checks(report), close_page());
  return html;
}

}  // namespace tessera::load
