#include "load/report/plots.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "eval/report/svg.h"

namespace tessera::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWidth = 486;
constexpr double kHeight = 330;
constexpr double kLeft = 70;
constexpr double kRight = 462;
constexpr double kTop = 22;
constexpr double kBottom = 280;
constexpr double kSmallestMs = 1e-3;
constexpr const char* kColors[] = {"#0b5cad", "#d55e00", "#009e73", "#b8478f"};

struct Line {
  std::string label;
  std::vector<Svg::Point> points;  // in the units of the axes
};

void draw_axes(Svg& svg, const Axis& x, const Axis& y, const char* x_title, const char* y_title) {
  for (const double tick : y.ticks()) {
    svg.line({kLeft, y.at(tick)}, {kRight, y.at(tick)}, "stroke:#e4e4e0");
    svg.text({kLeft - 8, y.at(tick) + 4}, y.label(tick), "tick end");
  }
  for (const double tick : x.ticks()) {
    svg.line({x.at(tick), kBottom}, {x.at(tick), kBottom + 5}, "stroke:#777");
    svg.text({x.at(tick), kBottom + 19}, x.label(tick), "tick middle");
  }
  svg.line({kLeft, kBottom}, {kRight, kBottom}, "stroke:#777");
  svg.text({(kLeft + kRight) / 2, kBottom + 40}, x_title, "axis middle");
  svg.text({16, (kTop + kBottom) / 2}, y_title, "axis middle", -90);
}

void draw_lines(Svg& svg, const Axis& x, const Axis& y, const std::vector<Line>& lines) {
  for (size_t i = 0; i < lines.size(); ++i) {
    const char* color = kColors[i % std::size(kColors)];
    std::vector<Svg::Point> points;
    for (const Svg::Point& point : lines[i].points) {
      points.push_back({x.at(point.x), y.at(point.y)});
    }
    svg.path(points, absl::StrCat("stroke:", color, ";stroke-width:2"));
    const double left = kLeft + 12 + 95 * static_cast<double>(i);
    svg.line({left, kTop - 8}, {left + 16, kTop - 8},
             absl::StrCat("stroke:", color, ";stroke-width:3"));
    svg.text({left + 21, kTop - 4}, lines[i].label, "tick");
  }
}

Axis::Range range_of(const std::vector<Line>& lines, double Svg::Point::*value) {
  Axis::Range range{1e300, -1e300};
  for (const Line& line : lines) {
    for (const Svg::Point& point : line.points) {
      range.min = std::min(range.min, point.*value);
      range.max = std::max(range.max, point.*value);
    }
  }
  return range;
}

bool empty(const std::vector<Line>& lines) {
  return std::all_of(lines.begin(), lines.end(),
                     [](const Line& line) { return line.points.size() < 2; });
}

// Cumulative distribution: the share of values at most so large, from a histogram's buckets.
Line distribution_line(const std::string& label, const Json& measure) {
  Line line{label, {}};
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
  std::vector<Line> lines;
  for (const auto& [name, measure] : report["latency"].items()) {
    if (name != "client_lag" && measure["count"] > 0) {
      lines.push_back(distribution_line(name, measure));
    }
  }
  if (empty(lines)) {
    return "";
  }
  Svg svg(kWidth, kHeight, "Latency by percentile");
  const Axis x = Axis::logarithmic(range_of(lines, &Svg::Point::x), {kLeft, kRight});
  const Axis y = Axis::linear({0, 100}, {kBottom, kTop});
  draw_axes(svg, x, y, "ms", "% of values at most so large");
  draw_lines(svg, x, y, lines);
  return svg.finish();
}

std::string plot_timeline(const Json& report) {
  std::vector<Line> lines = {{"started", {}}, {"ok", {}}, {"failed", {}}};
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
  if (empty(lines)) {
    return "";
  }
  Svg svg(kWidth, kHeight, "Requests by second");
  const Axis x = Axis::linear({0, range_of(lines, &Svg::Point::x).max}, {kLeft, kRight});
  const Axis y = Axis::linear({0, range_of(lines, &Svg::Point::y).max}, {kBottom, kTop});
  draw_axes(svg, x, y, "seconds", "requests/s");
  draw_lines(svg, x, y, lines);
  return svg.finish();
}

std::string plot_kv_bytes(const Json& report) {
  Line line{"MiB", {}};
  for (const Json& sample : report["server"]["samples"]) {
    double bytes = 0;
    for (const auto& [format, of_format] : sample["kv_bytes"].items()) {
      bytes += of_format.get<double>();
    }
    line.points.push_back({sample["time"].get<double>(), bytes / (1 << 20)});
  }
  const std::vector<Line> lines = {line};
  if (empty(lines) || range_of(lines, &Svg::Point::y).max <= 0) {
    return "";
  }
  Svg svg(kWidth, kHeight, "KV cache in use");
  const Axis x = Axis::linear({0, range_of(lines, &Svg::Point::x).max}, {kLeft, kRight});
  const Axis y = Axis::linear({0, range_of(lines, &Svg::Point::y).max}, {kBottom, kTop});
  draw_axes(svg, x, y, "seconds", "MiB");
  draw_lines(svg, x, y, lines);
  return svg.finish();
}

std::string plot_sweep(const Json& report) {
  if (!report.contains("sweep")) {
    return "";
  }
  Line line{"TTFT p90", {}};
  for (const Json& point : report["sweep"]["points"]) {
    line.points.push_back({point["rate"].get<double>(),
                           std::max(1e3 * point["ttft_p90"].get<double>(), kSmallestMs)});
  }
  std::sort(line.points.begin(), line.points.end(),
            [](const Svg::Point& a, const Svg::Point& b) { return a.x < b.x; });
  const std::vector<Line> lines = {line};
  if (empty(lines)) {
    return "";
  }
  Svg svg(kWidth, kHeight, "Sweep");
  const Axis x = Axis::linear({0, range_of(lines, &Svg::Point::x).max}, {kLeft, kRight});
  const Axis y = Axis::logarithmic(range_of(lines, &Svg::Point::y), {kBottom, kTop});
  draw_axes(svg, x, y, "requests/s", "ms");
  draw_lines(svg, x, y, lines);
  for (const Json& point : report["sweep"]["points"]) {
    const bool passed = point["passed"].get<bool>();
    const double ms = std::max(1e3 * point["ttft_p90"].get<double>(), kSmallestMs);
    svg.circle({x.at(point["rate"].get<double>()), y.at(ms)}, 5,
               passed ? "fill:#009e73" : "fill:#b3430b",
               absl::StrFormat("%g requests/s: %.1f ms, %s", point["rate"].get<double>(), ms,
                               passed ? "within the SLOs" : "not within the SLOs"));
  }
  return svg.finish();
}

}  // namespace tessera::load
