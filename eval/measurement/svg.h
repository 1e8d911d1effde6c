#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Escapes text for element content and attributes: "&lt;" for "<" and so on.
std::string escape_markup(std::string_view text);

// An axis: maps values to pixels, and has values for ticks.
class Axis {
 public:
  struct Range {
    double min = 0;
    double max = 0;
  };

  // Ticks are round numbers (1, 2 or 5 times a power of ten). The range is extended to them.
  static Axis linear(Range values, Range pixels);
  // Ticks are powers of `base`.
  // Requires: values above 0.
  static Axis logarithmic(Range values, Range pixels, double base = 10);

  double at(double value) const;  // pixels
  const std::vector<double>& ticks() const { return ticks_; }
  std::string label(double tick) const;

 private:
  Axis() = default;
  double base_ = 0;  // base of logarithms; 0: linear
  Range values_;     // logarithms of the values, if logarithmic
  Range pixels_;
  std::vector<double> ticks_;
};

// An SVG drawing. Coordinates are pixels from the top left.
class Svg {
 public:
  Svg(double width, double height, std::string_view title);

  struct Point {
    double x = 0;
    double y = 0;
  };
  void line(Point from, Point to, std::string_view style);
  void path(const std::vector<Point>& points, std::string_view style);
  void circle(Point center, double radius, std::string_view style, std::string_view tooltip);
  void diamond(Point center, double radius, std::string_view style, std::string_view tooltip);
  void rectangle(Point corner, Point size, std::string_view style, std::string_view tooltip);
  // `classes` are classes of the page's style sheet. `turn` is a rotation in degrees.
  void text(Point at, std::string_view text, std::string_view classes, double turn = 0);

  std::string finish();

 private:
  void title(std::string_view tooltip);
  std::string out_;
};

}  // namespace tessera
