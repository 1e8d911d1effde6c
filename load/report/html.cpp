#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "eval/report/svg.h"
#include "load/report/plots.h"
#include "load/report/report.h"

namespace tessera::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kStyle = R"(
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #22262b;
  background: #fbfbf9; margin: 0 auto; padding: 28px 32px 60px; max-width: 1120px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 32px 0 4px; }
h3 { font-size: 14px; margin: 0 0 4px; font-weight: 600; } .faint { color: #6a6f76; }
table { border-collapse: collapse; margin: 10px 0; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 16px 5px 0; text-align: right; border-bottom: 1px solid #e4e4e0; }
th:first-child, td:first-child, td.text { text-align: left; }
.interval { display: block; color: #868b92; font-size: 12px; line-height: 1.2; }
.no { color: #b3430b; font-weight: 600; } .yes { color: #00785a; font-weight: 600; }
.plots { display: flex; flex-wrap: wrap; gap: 20px; margin: 14px 0; }
.plot { background: #fff; border: 1px solid #e4e4e0; border-radius: 8px; padding: 14px 14px 8px; }
svg { display: block; max-width: 100%; height: auto; }
svg .tick { font-size: 12px; fill: #5b6067; } svg .axis { font-size: 12.5px; fill: #33383d; }
svg .label { font-size: 12px; font-weight: 600; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
)";

std::string framed(const std::string& title, const std::string& plot) {
  return plot.empty()
             ? ""
             : absl::StrCat("<div class=\"plot\"><h3>", title, "</h3>\n", plot, "</div>\n");
}

std::string row(const std::vector<std::string>& cells) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&html, "<td>", cell, "</td>");
  }
  return html + "</tr>\n";
}

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
  absl::StrAppend(&html,
                  row({"requests", absl::StrCat(report["requests"]["finished"].get<int64_t>())}),
                  row({"ok", absl::StrCat(report["requests"]["ok"].get<int64_t>())}));
  for (const auto& [error, count] : report["requests"]["errors"].items()) {
    absl::StrAppend(&html, row({escape_markup(error), absl::StrCat(count.get<int64_t>())}));
  }
  for (const char* rate : {"requests_per_s", "output_tokens_per_s"}) {
    absl::StrAppend(&html,
                    row({rate, absl::StrFormat("%.2f", throughput[rate]["value"].get<double>())}));
  }
  const Json& answers = report["answers"];
  for (const char* kind : {"checked", "correct", "differs", "missed", "wrong"}) {
    absl::StrAppend(
        &html, row({absl::StrCat("answers ", kind), absl::StrCat(answers[kind].get<int64_t>())}));
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
    absl::StrAppend(&html, row(cells));
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
  const std::string model = escape_markup(report["model"].get<std::string>());
  std::string html = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>Load on ", model,
      "</title>\n<style>", std::string(kStyle), "</style></head>\n<body>\n<h1>Load on ", model,
      "</h1>\n<p class=\"faint\">", escape_markup(report["command"].get<std::string>()), "</p>\n");
  absl::StrAppend(&html, verdict(report), counts(report), "<h2>Latency</h2>\n",
                  "<p class=\"faint\">From the intended start of each request; 95 % bootstrap "
                  "intervals.</p>\n",
                  latency_table(report["latency"]), "<div class=\"plots\">\n",
                  framed("Latency by percentile", plot_percentiles(report)),
                  framed("Requests by second", plot_timeline(report)),
                  framed("KV cache in use", plot_kv_bytes(report)),
                  framed("Sweep: TTFT p90 by rate", plot_sweep(report)), "</div>\n",
                  failed_checks(report), "</body></html>\n");
  return html;
}

}  // namespace tessera::load
