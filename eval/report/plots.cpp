#include "eval/report/plots.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "eval/measurement/svg.h"

namespace tessera {
namespace {

constexpr double kWidth = 486;
constexpr double kHeight = 360;
constexpr double kLeft = 76;
constexpr double kRight = 462;
constexpr double kTop = 24;
constexpr double kBottom = 300;
constexpr double kCharacter = 7.6;  // maximum width of a label's character at 12 px
constexpr double kLabelHeight = 14;
constexpr double kPoint = 5.5;
// lower limit of drawn values, for the logarithmic axis
constexpr double kSmallestKl = 1e-12;

constexpr std::array<const char*, 8> kColors = {"#0b5cad", "#d55e00", "#009e73", "#b8478f",
                                                "#c98a00", "#3aa0dc", "#6b4fbb", "#5a5a5a"};

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// Places names beside their points, so that they cover neither a point nor another name.
class Labels {
 public:
  void keep_clear(Svg::Point point) {
    taken_.push_back({point.x - kPoint, point.y - kPoint, point.x + kPoint, point.y + kPoint});
  }

  void place(Svg& svg, Svg::Point point, const std::string& name) {
    const double width = kCharacter * static_cast<double>(name.size());
    for (const double rows : {0.0, -1.0, 1.0, -2.0, 2.0, -3.0, 3.0, -4.0, 4.0}) {
      const double y = point.y + rows * kLabelHeight;
      for (const double x : {point.x + kGap, point.x - kGap - width, point.x - width / 2}) {
        if (!take({x, y - kLabelHeight / 2, x + width, y + kLabelHeight / 2})) {
          continue;
        }
        if (std::abs(rows) > 1) {
          const double near = std::clamp(point.x, x, x + width);
          svg.line(point, {near, y + (rows > 0 ? -5 : 5)}, "stroke:#8a8a84;stroke-width:0.8");
        }
        svg.text({x, y + 4}, name, "label");
        return;
      }
    }
  }

 private:
  static constexpr double kGap = kPoint + 4;

  bool take(const Box& box) {
    const bool outside =
        box.left < kLeft || box.right > kRight + 20 || box.top < kTop - 6 || box.bottom > kBottom;
    if (outside || std::any_of(taken_.begin(), taken_.end(),
                               [&](const Box& other) { return box.meets(other); })) {
      return false;
    }
    taken_.push_back(box);
    return true;
  }

  std::vector<Box> taken_;
};

struct AxisTitles {
  std::string x;
  std::string y;
  double right = kRight;  // right edge of the plot
};

void draw_axes(Svg& svg, const Axis& x, const Axis& y, const AxisTitles& titles) {
  for (const double tick : y.ticks()) {
    svg.line({kLeft, y.at(tick)}, {titles.right, y.at(tick)}, "stroke:#e4e4e0");
    svg.text({kLeft - 8, y.at(tick) + 4}, y.label(tick), "tick end");
  }
  for (const double tick : x.ticks()) {
    svg.line({x.at(tick), kBottom}, {x.at(tick), kBottom + 5}, "stroke:#777");
    svg.text({x.at(tick), kBottom + 20}, x.label(tick), "tick middle");
  }
  svg.line({kLeft, kBottom}, {titles.right, kBottom}, "stroke:#777");
  svg.text({(kLeft + titles.right) / 2, kBottom + 44}, titles.x, "axis middle");
  svg.text({18, (kTop + kBottom) / 2}, titles.y, "axis middle", -90);
}

struct Mark {
  size_t subject;
  FrontierPoint point;
};

struct Frontier {
  std::vector<Mark> marks;
  Better better;
  Axis y;
  std::string title;
  std::string y_title;
  // the reference's score is beyond the axis, and is drawn at its end
  bool reference_below;
  double border;  // threshold of lossless; 0: none
};

void draw_marks(Svg& svg, const Report& report, const Frontier& plot, const Axis& x) {
  const auto place = [&](const Mark& mark) {
    const bool below = plot.reference_below && mark.subject == 0;
    return Svg::Point{x.at(mark.point.bytes), below ? kBottom : plot.y.at(mark.point.score)};
  };
  std::vector<FrontierPoint> points;
  for (const Mark& mark : plot.marks) points.push_back(mark.point);
  std::vector<Svg::Point> steps;
  for (const size_t i : pareto_front(points, plot.better)) {
    const Svg::Point at = place(plot.marks[i]);
    if (!steps.empty()) steps.push_back({at.x, steps.back().y});
    steps.push_back(at);
  }
  svg.path(steps, "stroke:#9a9a94;stroke-width:1.5;stroke-dasharray:5 4");
  Labels labels;
  for (const Mark& mark : plot.marks) labels.keep_clear(place(mark));
  for (const Mark& mark : plot.marks) {
    const Svg::Point at = place(mark);
    const SubjectReport& subject = report.subjects[mark.subject];
    const std::string style = absl::StrCat("fill:", subject_color(mark.subject), ";stroke:#fff");
    const std::string tooltip = absl::StrFormat("%s: %.0f bytes/token, %.3g", subject.name,
                                                mark.point.bytes * 1024, mark.point.score);
    if (mark.subject == 0) {
      svg.diamond(at, kPoint + 2, style, tooltip);
    } else {
      svg.circle(at, kPoint, style, tooltip);
    }
    labels.place(svg, at, mark.subject == 0 ? subject.name + " (reference)" : subject.name);
  }
}

std::string draw_frontier(const Report& report, const Frontier& plot) {
  double min = plot.marks.front().point.bytes;
  double max = min;
  for (const Mark& mark : plot.marks) {
    min = std::min(min, mark.point.bytes);
    max = std::max(max, mark.point.bytes);
  }
  // A step on this axis halves the cache.
  const Axis x = Axis::logarithmic({min * 0.9, max}, {kLeft, kRight}, 2);
  Svg svg(kWidth, kHeight, plot.title);
  draw_axes(svg, x, plot.y, {"KV cache, KiB per token (measured)", plot.y_title});
  if (plot.border > 0) {
    const double y = plot.y.at(plot.border);
    svg.line({kLeft, y}, {kRight, y}, "stroke:#00785a;stroke-width:1.2;stroke-dasharray:2 3");
    svg.text({kRight, y + 14}, "lossless below", "tick end");
  }
  draw_marks(svg, report, plot, x);
  svg.line({kLeft + 6, kTop - 12}, {kLeft + 34, kTop - 12},
           "stroke:#9a9a94;stroke-width:1.5;stroke-dasharray:5 4");
  svg.text({kLeft + 40, kTop - 8}, "Pareto front: nothing is both smaller and better", "tick");
  return svg.finish();
}

double kib(const KvReport& kv) {
  return kv.bytes_per_token() / 1024;
}

// ---- lines

struct LineName {
  Svg::Point at;  // the line's end
  std::string name;
  std::string color;
};

// Draws names beside the ends of lines, and moves them apart so that none covers another.
void name_lines(Svg& svg, std::vector<LineName> names) {
  std::sort(names.begin(), names.end(),
            [](const LineName& a, const LineName& b) { return a.at.y < b.at.y; });
  double above = kTop - kLabelHeight;
  for (const LineName& line : names) {
    const double y = std::max(line.at.y, above + kLabelHeight);
    svg.line({line.at.x + 6, line.at.y}, {line.at.x + 18, y},
             absl::StrCat("stroke-width:0.8;stroke:", line.color));
    svg.text({line.at.x + 21, y + 4}, line.name, "label");
    above = y;
  }
}

// ---- heat maps

struct Rgb {
  double r, g, b;
};
constexpr Rgb kNone{0xC8, 0x55, 0x1B};
constexpr Rgb kHalf{0xF6, 0xEF, 0xDF};
constexpr Rgb kAll{0x1F, 0x67, 0xA6};

std::string share_color(double share) {
  const Rgb from = share < 0.5 ? kNone : kHalf;
  const Rgb to = share < 0.5 ? kHalf : kAll;
  const double t = share < 0.5 ? 2 * share : 2 * share - 1;
  const auto mix = [t](double a, double b) {
    return static_cast<int>(std::lround(a + t * (b - a)));
  };
  return absl::StrFormat("#%02x%02x%02x", mix(from.r, to.r), mix(from.g, to.g), mix(from.b, to.b));
}

std::string ink(double share) {
  return share < 0.15 || share > 0.8 ? "cell light" : "cell";
}

struct HeatMap {
  std::vector<double> shares;  // [rows, columns]; -1: none
  std::vector<std::string> rows{};
  std::vector<std::string> columns{};
  std::string row_title;
  std::string column_title;
  std::string title;
};

std::string draw_heat_map(const HeatMap& map) {
  const double cell_width = std::clamp(300.0 / static_cast<double>(map.columns.size()), 26.0, 52.0);
  const double cell_height = std::clamp(400.0 / static_cast<double>(map.rows.size()), 14.0, 26.0);
  const double left = 60;
  const double right = left + cell_width * static_cast<double>(map.columns.size());
  const double bottom = 6 + cell_height * static_cast<double>(map.rows.size());
  Svg svg(right + 8, bottom + 42, map.title);
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const double top = 6 + cell_height * static_cast<double>(r);
    svg.text({left - 6, top + cell_height / 2 + 4}, map.rows[r], "tick end");
    for (size_t c = 0; c < map.columns.size(); ++c) {
      const double share = map.shares[r * map.columns.size() + c];
      const double x = left + cell_width * static_cast<double>(c);
      svg.rectangle({x, top}, {cell_width - 1.5, cell_height - 1.5},
                    absl::StrCat("fill:", share < 0 ? "#eee" : share_color(share)),
                    absl::StrCat(map.row_title, " ", map.rows[r], ", ", map.column_title, " ",
                                 map.columns[c]));
      if (share >= 0) {
        svg.text({x + cell_width / 2, top + cell_height / 2 + 3.5},
                 absl::StrFormat("%.0f", 100 * share), ink(share) + " middle");
      }
    }
  }
  for (size_t c = 0; c < map.columns.size(); ++c) {
    svg.text({left + cell_width * (static_cast<double>(c) + 0.5), bottom + 14}, map.columns[c],
             "tick middle");
  }
  svg.text({(left + right) / 2, bottom + 33}, map.column_title, "axis middle");
  svg.text({14, (6 + bottom) / 2}, map.row_title, "axis middle", -90);
  return svg.finish();
}

}  // namespace

std::vector<size_t> pareto_front(const std::vector<FrontierPoint>& points, Better better) {
  const double sign = better == Better::lower ? 1 : -1;
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return points[a].bytes != points[b].bytes ? points[a].bytes < points[b].bytes
                                              : sign * points[a].score < sign * points[b].score;
  });
  std::vector<size_t> front;
  for (const size_t i : order) {
    if (front.empty() || sign * points[i].score < sign * points[front.back()].score) {
      front.push_back(i);
    }
  }
  return front;
}

std::string subject_color(size_t place) {
  return kColors[place % kColors.size()];
}

std::string plot_kl_frontier(const Report& report) {
  std::vector<Mark> marks;
  double min = kLosslessLimits.kl;  // always in view
  double max = kLosslessLimits.kl;
  for (size_t s = 0; s < report.subjects.size(); ++s) {
    const SubjectReport& subject = report.subjects[s];
    if (!subject.kv || (s > 0 && !subject.kl)) continue;
    const double kl = s == 0 ? 0 : std::max(*subject.kl, kSmallestKl);
    marks.push_back({s, {kib(*subject.kv), kl}});
    if (s > 0) {
      min = std::min(min, kl);
      max = std::max(max, kl);
    }
  }
  if (marks.size() < 2) return "";
  const Axis y = Axis::logarithmic({min / 2, max}, {kBottom, kTop});
  return draw_frontier(report,
                       {std::move(marks), Better::lower, y, "Mean KL divergence against KV bytes",
                        "mean KL divergence, nats (lower is better)", true, kLosslessLimits.kl});
}

std::string plot_accuracy_frontier(const Report& report) {
  std::vector<Mark> marks;
  double min = 100;
  for (size_t s = 0; s < report.subjects.size(); ++s) {
    const SubjectReport& subject = report.subjects[s];
    if (!subject.kv || !subject.accuracy) continue;
    marks.push_back({s, {kib(*subject.kv), 100 * *subject.accuracy}});
    min = std::min(min, 100 * *subject.accuracy);
  }
  if (marks.size() < 2) return "";
  const Axis y = Axis::linear({std::max(0.0, min - 5), 100}, {kBottom, kTop});
  return draw_frontier(report, {std::move(marks), Better::higher, y, "Accuracy against KV bytes",
                                "mean accuracy over tasks, % (higher is better)", false, 0});
}

std::string plot_course(const Report& report, const CourseReport& course) {
  constexpr double kNames = 90;  // width for names right of the lines
  double min = 1;
  double max = 0;
  for (const std::vector<double>& values : course.subjects) {
    for (const double value : values) {
      min = std::min(min, std::max(value, kSmallestKl));
      max = std::max(max, std::max(value, kSmallestKl));
    }
  }
  if (max == 0) return "";
  const Axis x = Axis::linear({0, course.positions.back()}, {kLeft, kRight - kNames});
  const Axis y = Axis::logarithmic({min, max}, {kBottom, kTop});
  Svg svg(kWidth, kHeight, "KL divergence along a long generation");
  draw_axes(svg, x, y, {"position, tokens", "mean KL divergence, nats", kRight - kNames});
  std::vector<LineName> names;
  for (size_t s = 0; s < course.subjects.size(); ++s) {
    std::vector<Svg::Point> points;
    for (size_t i = 0; i < course.subjects[s].size(); ++i) {
      points.push_back(
          {x.at(course.positions[i]), y.at(std::max(course.subjects[s][i], kSmallestKl))});
    }
    if (points.empty()) continue;
    const std::string color = subject_color(s);
    svg.path(points, absl::StrCat("stroke-width:2;stroke:", color));
    for (size_t i = 0; i < points.size(); ++i) {
      svg.circle(points[i], 3.5, absl::StrCat("stroke:#fff;fill:", color),
                 absl::StrFormat("%s at %.0f: %.2e", report.subjects[s].name, course.positions[i],
                                 course.subjects[s][i]));
    }
    names.push_back({points.back(), report.subjects[s].name, color});
  }
  name_lines(svg, std::move(names));
  return svg.finish();
}

std::string plot_grid(const GridReport& grid, size_t subject) {
  HeatMap map{.shares = grid.subjects[subject],
              .row_title = "depth",
              .column_title = absl::StrCat("context, ", grid.length_title),
              .title = "Share of right answers, %, by depth and length"};
  for (const double depth : grid.depths)
    map.rows.push_back(absl::StrFormat("%.0f %%", 100 * depth));
  for (const int32_t length : grid.lengths) map.columns.push_back(absl::StrCat(length));
  return draw_heat_map(map);
}

std::string plot_kept(const KeptReport& kept) {
  HeatMap map{.shares = kept.share,
              .row_title = "layer",
              .column_title = "KV head",
              .title = "Share of the prompts' tokens that are kept, %"};
  for (int32_t layer = 0; layer < kept.layers; ++layer) map.rows.push_back(absl::StrCat(layer));
  for (int32_t head = 0; head < kept.kv_heads; ++head) map.columns.push_back(absl::StrCat(head));
  return draw_heat_map(map);
}

std::string plot_share_scale(const char* title) {
  constexpr int kSteps = 50;
  Svg svg(330, 34, title);
  svg.text({0, 14}, title, "tick");
  for (int i = 0; i < kSteps; ++i) {
    svg.rectangle({110 + 4.0 * i, 4}, {4.2, 12},
                  absl::StrCat("fill:", share_color(i / (kSteps - 1.0))), "");
  }
  svg.text({110, 30}, "0 %", "tick middle");
  svg.text({210, 30}, "50 %", "tick middle");
  svg.text({310, 30}, "100 %", "tick middle");
  return svg.finish();
}

}  // namespace tessera
