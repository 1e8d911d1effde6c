#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "load/report/chart.h"
#include "load/report/page.h"
#include "load/report/report.h"

namespace tessera::load {
namespace {

using nlohmann::json;

constexpr double kMiB = 1 << 20;

// A value of each rate of a report; nothing where the report has none.
struct Measure {
  const char* title;
  const char* unit;
  bool logarithmic;
  std::optional<double> (*of)(const json& point);
};

std::optional<double> ttft_ms(const json& point) {
  return std::max(kSmallestMs, 1e3 * point.at("ttft_p90").at("value").get<double>());
}

std::optional<double> correct_percent(const json& point) {
  const json& answers = point.at("answers");
  return answers.at("checked") > 0
             ? std::optional(100 * answers.at("correct_share").at("value").get<double>())
             : std::nullopt;
}

std::optional<double> request_mib(const json& point) {
  const json& bytes = point.at("kv_bytes_per_request");
  return bytes.is_null() ? std::nullopt : std::optional(bytes.get<double>() / kMiB);
}

std::optional<double> most_mib(const json& point) {
  const auto bytes = point.at("most_kv_bytes").get<double>();
  return bytes > 0 ? std::optional(bytes / kMiB) : std::nullopt;
}

constexpr Measure kMeasures[] = {
    {"TTFT p90", "ms", true, ttft_ms},
    {"Correct answers", "% of those checked", false, correct_percent},
    {"KV cache of a request", "MiB, mean", false, request_mib},
    {"KV cache in use, prefix cache included", "MiB, at most", false, most_mib},
};

std::string plot(const std::vector<LabelledReport>& reports, const Measure& measure) {
  std::vector<ChartLine> lines;
  for (const LabelledReport& labelled : reports) {
    ChartLine line{labelled.label, {}};
    for (const json& point : labelled.report.at("sweep").at("points")) {
      if (const auto value = measure.of(point)) {
        line.points.push_back({point.at("rate").get<double>(), *value});
      }
    }
    std::sort(line.points.begin(), line.points.end(),
              [](const Svg::Point& a, const Svg::Point& b) { return a.x < b.x; });
    lines.push_back(std::move(line));
  }
  if (is_empty(lines)) {
    return "";
  }
  Svg svg(kChartWidth, kChartHeight, measure.title);
  const Axis x = Axis::linear({0, range_of(lines, &Svg::Point::x).max}, kChartX);
  const Axis::Range values = range_of(lines, &Svg::Point::y);
  const Axis y = measure.logarithmic ? Axis::logarithmic(values, kChartY)
                                     : Axis::linear({0, values.max}, kChartY);
  draw_axes(svg, x, y, "requests/s", measure.unit);
  draw_lines(svg, x, y, lines);
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const Svg::Point& point : lines[i].points) {
      svg.circle({x.at(point.x), y.at(point.y)}, 4, absl::StrCat("fill:", chart_color(i)),
                 absl::StrFormat("%s, %g requests/s: %.4g %s", lines[i].label, point.x, point.y,
                                 measure.unit));
    }
  }
  return svg.finish();
}

std::string legend(const std::vector<LabelledReport>& reports) {
  std::string html = "<p>";
  for (size_t i = 0; i < reports.size(); ++i) {
    absl::StrAppend(&html, "<span style=\"color:", chart_color(i), "\">&#9632;</span> ",
                    escape_markup(reports[i].label), "&emsp;");
  }
  return html + "</p>\n";
}

std::string cell(const std::optional<double>& value) {
  return value ? absl::StrFormat("%.2f", *value) : "&ndash;";
}

std::string table(const std::vector<LabelledReport>& reports) {
  std::string html =
      "<table><tr><th></th><th>requests/s</th><th>TTFT p90, ms</th><th>correct, %</th>"
      "<th>prompt cached, %</th><th>KV of a request, MiB</th><th>most KV, MiB</th></tr>\n";
  for (const LabelledReport& labelled : reports) {
    for (const json& point : labelled.report.at("sweep").at("points")) {
      const json& ttft = point.at("ttft_p90");
      absl::StrAppend(
          &html, table_row({escape_markup(labelled.label),
                            absl::StrFormat("%g", point.at("rate").get<double>()),
                            absl::StrFormat("%.1f<span class=\"interval\">%.1f &ndash; %.1f</span>",
                                            *ttft_ms(point), 1e3 * ttft.at("low").get<double>(),
                                            1e3 * ttft.at("high").get<double>()),
                            cell(correct_percent(point)),
                            absl::StrFormat("%.1f", 100 * point.at("cached_share").get<double>()),
                            cell(request_mib(point)), cell(most_mib(point))}));
    }
  }
  return html + "</table>\n";
}

std::string commands(const std::vector<LabelledReport>& reports) {
  std::string html = "<h2>Commands</h2>\n<table>\n";
  for (const LabelledReport& labelled : reports) {
    absl::StrAppend(
        &html, "<tr><td>", escape_markup(labelled.label), "</td><td class=\"text\"><code>",
        escape_markup(labelled.report.at("command").get<std::string>()), "</code><br>",
        escape_markup(labelled.report.at("model").get<std::string>()), ", client on ",
        escape_markup(labelled.report.at("machine").get<std::string>()), "</td></tr>\n");
  }
  return html + "</table>\n";
}

std::string print_page(const std::vector<LabelledReport>& reports) {
  std::string html = open_page("Rate, latency, answers and KV bytes",
                               "95 % bootstrap intervals. Times count from the intended start.");
  absl::StrAppend(&html, legend(reports), "<div class=\"plots\">\n");
  for (const Measure& measure : kMeasures) {
    absl::StrAppend(&html, framed(measure.title, plot(reports, measure)));
  }
  absl::StrAppend(&html, "</div>\n", table(reports), commands(reports), close_page());
  return html;
}

}  // namespace

absl::StatusOr<std::string> print_curves(const std::vector<LabelledReport>& reports) {
  try {
    return print_page(reports);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "these are not reports of tessera-load with --rates or --sweep: ", error.what()));
  }
}

}  // namespace tessera::load
