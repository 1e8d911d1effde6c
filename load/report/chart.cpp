#include "load/report/chart.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera::load {
namespace {

constexpr double kLegendColumn = 95;
constexpr size_t kLegendColumns = 4;
constexpr const char* kColors[] = {"#0b5cad", "#d55e00", "#009e73", "#b8478f",
                                   "#56b4e9", "#8a6d00", "#444444", "#7a3fc0"};

}  // namespace

void draw_axes(Svg& svg, const Axis& x, const Axis& y, const char* x_title, const char* y_title) {
  const auto [left, right] = kChartX;
  const auto [bottom, top] = kChartY;
  for (const double tick : y.ticks()) {
    svg.line({left, y.at(tick)}, {right, y.at(tick)}, "stroke:#e4e4e0");
    svg.text({left - 8, y.at(tick) + 4}, y.label(tick), "tick end");
  }
  for (const double tick : x.ticks()) {
    svg.line({x.at(tick), bottom}, {x.at(tick), bottom + 5}, "stroke:#777");
    svg.text({x.at(tick), bottom + 19}, x.label(tick), "tick middle");
  }
  svg.line({left, bottom}, {right, bottom}, "stroke:#777");
  svg.text({(left + right) / 2, bottom + 40}, x_title, "axis middle");
  svg.text({16, (top + bottom) / 2}, y_title, "axis middle", -90);
}

void draw_lines(Svg& svg, const Axis& x, const Axis& y, const std::vector<ChartLine>& lines) {
  for (size_t i = 0; i < lines.size(); ++i) {
    std::vector<Svg::Point> points;
    for (const Svg::Point& point : lines[i].points) {
      points.push_back({x.at(point.x), y.at(point.y)});
    }
    svg.path(points, absl::StrCat("stroke:", chart_color(i), ";stroke-width:2"));
    if (lines.size() > kLegendColumns) {
      continue;  // the page has a legend for all its charts
    }
    const double left = kChartX.min + 12 + kLegendColumn * static_cast<double>(i);
    const double top = kChartY.max;
    svg.line({left, top - 8}, {left + 16, top - 8},
             absl::StrCat("stroke:", chart_color(i), ";stroke-width:3"));
    svg.text({left + 21, top - 4}, lines[i].label, "tick");
  }
}

const char* chart_color(size_t index) {
  return kColors[index % std::size(kColors)];
}

Axis::Range range_of(const std::vector<ChartLine>& lines, double Svg::Point::*value) {
  Axis::Range range{1e300, -1e300};
  for (const ChartLine& line : lines) {
    for (const Svg::Point& point : line.points) {
      range.min = std::min(range.min, point.*value);
      range.max = std::max(range.max, point.*value);
    }
  }
  return range;
}

bool is_empty(const std::vector<ChartLine>& lines) {
  return std::all_of(lines.begin(), lines.end(),
                     [](const ChartLine& line) { return line.points.size() < 2; });
}

}  // namespace tessera::load
