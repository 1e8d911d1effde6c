#include "eval/measurement/svg.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace tessera {
namespace {

constexpr int kMaxTicks = 6;
constexpr int kMaxDecades = 7;

// The round step that cuts the range into at most kMaxTicks.
double round_step(double range) {
  const double rough = range / kMaxTicks;
  const double magnitude = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * magnitude >= rough) return factor * magnitude;
  }
  return 10 * magnitude;
}

}  // namespace

std::string escape_markup(std::string_view text) {
  return absl::StrReplaceAll(std::string(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

Axis Axis::linear(Range values, Range pixels) {
  Axis axis;
  axis.pixels_ = pixels;
  if (values.max <= values.min) {
    values.max = values.min + 1;
  }
  const double step = round_step(values.max - values.min);
  const double first = std::floor(values.min / step + 1e-9);
  const double last = std::ceil(values.max / step - 1e-9);
  axis.values_ = {first * step, last * step};
  for (double tick = first; tick <= last; ++tick) {
    axis.ticks_.push_back(tick * step);
  }
  return axis;
}

Axis Axis::logarithmic(Range values, Range pixels, double base) {
  Axis axis;
  axis.base_ = base;
  axis.pixels_ = pixels;
  const double first = std::floor(std::log(values.min) / std::log(base) + 1e-9);
  const double last = std::max(std::ceil(std::log(values.max) / std::log(base) - 1e-9), first + 1);
  axis.values_ = {first, last};
  const double stride = std::ceil((last - first) / kMaxDecades);
  for (double power = first; power <= last; power += stride) {
    axis.ticks_.push_back(std::pow(base, power));
  }
  return axis;
}

double Axis::at(double value) const {
  const double place = base_ > 0 ? std::log(value) / std::log(base_) : value;
  const double share = (place - values_.min) / (values_.max - values_.min);
  return pixels_.min + share * (pixels_.max - pixels_.min);
}

std::string Axis::label(double tick) const {
  if (base_ != 10) {
    return absl::StrFormat("%g", std::abs(tick) < 1e-12 ? 0 : tick);
  }
  return tick >= 0.001 && tick <= 1000 ? absl::StrFormat("%g", tick)
                                       : absl::StrFormat("1e%.0f", std::log10(tick));
}

Svg::Svg(double width, double height, std::string_view title)
    : out_(absl::StrFormat("<svg viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" role=\"img\">\n"
                           "<title>%s</title>\n",
                           width, height, width, height, escape_markup(title))) {}

void Svg::line(Point from, Point to, std::string_view style) {
  absl::StrAppendFormat(&out_,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" style=\"%s\"/>\n",
                        from.x, from.y, to.x, to.y, style);
}

void Svg::path(const std::vector<Point>& points, std::string_view style) {
  std::string list;
  for (const Point& point : points) {
    absl::StrAppendFormat(&list, "%.1f,%.1f ", point.x, point.y);
  }
  absl::StrAppendFormat(&out_, "<polyline points=\"%s\" style=\"fill:none;%s\"/>\n", list, style);
}

void Svg::circle(Point center, double radius, std::string_view style, std::string_view tooltip) {
  absl::StrAppendFormat(&out_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" style=\"%s\">", center.x,
                        center.y, radius, style);
  title(tooltip);
  absl::StrAppend(&out_, "</circle>\n");
}

void Svg::diamond(Point center, double radius, std::string_view style, std::string_view tooltip) {
  absl::StrAppendFormat(&out_, "<path d=\"M%.1f %.1f l%g %g l-%g %g l-%g -%g z\" style=\"%s\">",
                        center.x, center.y - radius, radius, radius, radius, radius, radius, radius,
                        style);
  title(tooltip);
  absl::StrAppend(&out_, "</path>\n");
}

void Svg::rectangle(Point corner, Point size, std::string_view style, std::string_view tooltip) {
  absl::StrAppendFormat(&out_,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" style=\"%s\">",
                        corner.x, corner.y, size.x, size.y, style);
  title(tooltip);
  absl::StrAppend(&out_, "</rect>\n");
}

void Svg::text(Point at, std::string_view text, std::string_view classes, double turn) {
  absl::StrAppendFormat(&out_, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\"", at.x, at.y, classes);
  if (turn != 0) {
    absl::StrAppendFormat(&out_, " transform=\"rotate(%g %.1f %.1f)\"", turn, at.x, at.y);
  }
  absl::StrAppend(&out_, ">", escape_markup(text), "</text>\n");
}

std::string Svg::finish() {
  return out_ + "</svg>\n";
}

void Svg::title(std::string_view tooltip) {
  if (!tooltip.empty()) {
    absl::StrAppend(&out_, "<title>", escape_markup(tooltip), "</title>");
  }
}

}  // namespace tessera
