#include "load/report/plots.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "eval/measurement/svg.h"
#include "load/report/chart.h"

namespace tessera::load {
namespace {

using Json = nlohmann::ordered_json;

// Cumulative distribution: the share of values at most so large, from a histogram's buckets.
ChartLine distribution_line(const std::string& label, const Json& measure) {
  ChartLine line{label, {}};
  const auto total = measure["count"].get<double>();
  double below = 0;
  for (const Json& bucket : measure["histogram"]) {
    below += bucket[1].get<double>();
    line.points.push_back(
        {std::max(1e3 * bucket[0].get<double>(), kSmallestMs), 100 * below / total});
  }
  return line;
}

}  // namespace

std::string plot_percentiles(const Json& report) {
  std::vector<ChartLine> lines;
  for (const auto& [name, measure] : report["latency"].items()) {
    if (name != "client_lag" && measure["count"] > 0) {
      lines.push_back(distribution_line(name, measure));
    }
  }
  if (is_empty(lines)) {
    return "";
  }
  Svg svg(kChartWidth, kChartHeight, "Latency by percentile");
  const Axis x = Axis::logarithmic(range_of(lines, &Svg::Point::x), kChartX);
  const Axis y = Axis::linear({0, 100}, kChartY);
  draw_axes(svg, x, y, "ms", "% of values at most so large");
  draw_lines(svg, x, y, lines);
  return svg.finish();
}

std::string plot_timeline(const Json& report) {
  std::vector<ChartLine> lines = {{"started", {}}, {"ok", {}}, {"failed", {}}};
  const Json& seconds = report["timeline"]["seconds"];
  // At most about 400 points: longer runs show means.
  const size_t stride = seconds.size() / 400 + 1;
  for (size_t begin = 0; begin + stride <= seconds.size(); begin += stride) {
    for (size_t column = 0; column < lines.size(); ++column) {
      double sum = 0;
      for (size_t i = begin; i < begin + stride; ++i) {
        sum += seconds[i][column].get<double>();
      }
      lines[column].points.push_back(
          {static_cast<double>(begin), sum / static_cast<double>(stride)});
    }
  }
  if (is_empty(lines)) {
    return "";
  }
  Svg svg(kChartWidth, kChartHeight, "Requests by second");
  const Axis x = Axis::linear({0, range_of(lines, &Svg::Point::x).max}, kChartX);
  const Axis y = Axis::linear({0, range_of(lines, &Svg::Point::y).max}, kChartY);
  draw_axes(svg, x, y, "seconds", "requests/s");
  draw_lines(svg, x, y, lines);
  return svg.finish();
}

std::string plot_kv_bytes(const Json& report) {
  ChartLine line{"MiB", {}};
  for (const Json& sample : report["server"]["samples"]) {
    double bytes = 0;
    for (const auto& [format, of_format] : sample["kv_bytes"].items()) {
      bytes += of_format.get<double>();
    }
    line.points.push_back({sample["time"].get<double>(), bytes / (1 << 20)});
  }
  const std::vector<ChartLine> lines = {line};
  if (is_empty(lines) || range_of(lines, &Svg::Point::y).max <= 0) {
    return "";
  }
  Svg svg(kChartWidth, kChartHeight, "KV cache in use");
  const Axis x = Axis::linear({0, range_of(lines, &Svg::Point::x).max}, kChartX);
  const Axis y = Axis::linear({0, range_of(lines, &Svg::Point::y).max}, kChartY);
  draw_axes(svg, x, y, "seconds", "MiB");
  draw_lines(svg, x, y, lines);
  return svg.finish();
}

std::string plot_sweep(const Json& report) {
  if (!report.contains("sweep")) {
    return "";
  }
  ChartLine line{"TTFT p90", {}};
  for (const Json& point : report["sweep"]["points"]) {
    line.points.push_back({point["rate"].get<double>(),
                           std::max(1e3 * point["ttft_p90"]["value"].get<double>(), kSmallestMs)});
  }
  std::sort(line.points.begin(), line.points.end(),
            [](const Svg::Point& a, const Svg::Point& b) { return a.x < b.x; });
  const std::vector<ChartLine> lines = {line};
  if (is_empty(lines)) {
    return "";
  }
  Svg svg(kChartWidth, kChartHeight, "Sweep");
  const Axis x = Axis::linear({0, range_of(lines, &Svg::Point::x).max}, kChartX);
  const Axis y = Axis::logarithmic(range_of(lines, &Svg::Point::y), kChartY);
  draw_axes(svg, x, y, "requests/s", "ms");
  draw_lines(svg, x, y, lines);
  for (const Json& point : report["sweep"]["points"]) {
    const bool passed = point["passed"].get<bool>();
    const double ms = std::max(1e3 * point["ttft_p90"]["value"].get<double>(), kSmallestMs);
    svg.circle({x.at(point["rate"].get<double>()), y.at(ms)}, 5,
               passed ? "fill:#009e73" : "fill:#b3430b",
               absl::StrFormat("%g requests/s: %.1f ms, %s", point["rate"].get<double>(), ms,
                               passed ? "within the SLOs" : "not within the SLOs"));
  }
  return svg.finish();
}

}  // namespace tessera::load
