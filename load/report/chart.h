#pragma once

#include <string>
#include <vector>

#include "eval/measurement/svg.h"

namespace tessera::load {

// A line of a chart.
struct ChartLine {
  std::string label;
  std::vector<Svg::Point> points;  // in the units of the axes
};

// The frame that all charts share, in pixels.
inline constexpr double kChartWidth = 486;
inline constexpr double kChartHeight = 330;
inline constexpr Axis::Range kChartX = {70, 462};
inline constexpr Axis::Range kChartY = {280, 22};  // bottom, top
inline constexpr double kSmallestMs = 1e-3;        // a logarithmic axis of times begins here

void draw_axes(Svg& svg, const Axis& x, const Axis& y, const char* x_title, const char* y_title);
// Draws the lines and, above them, their labels.
void draw_lines(Svg& svg, const Axis& x, const Axis& y, const std::vector<ChartLine>& lines);

// Returns: the color of the line with this index.
const char* chart_color(size_t index);
Axis::Range range_of(const std::vector<ChartLine>& lines, double Svg::Point::*value);
// Returns: true if no line has two points.
bool is_empty(const std::vector<ChartLine>& lines);

}  // namespace tessera::load
