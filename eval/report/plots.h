#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "eval/score/report.h"

namespace tessera {

struct FrontierPoint {
  double bytes = 0;  // lower is better
  double score = 0;
};

// Returns: indices of the points that no other point dominates, in ascending order of bytes. A
// point dominates another if it is at least as good in both values and better in one.
std::vector<size_t> pareto_front(const std::vector<FrontierPoint>& points, Better better);

// Returns: the colour of a subject, the same in every plot and table.
std::string subject_color(size_t place);

// These return a plot as an <svg> element, or an empty string if the report has no data for it.
std::string plot_kl_frontier(const Report& report);
std::string plot_accuracy_frontier(const Report& report);
std::string plot_course(const Report& report, const CourseReport& course);
std::string plot_grid(const GridReport& grid, size_t subject);
std::string plot_kept(const KeptReport& kept);

// Returns: the colour scale of plot_grid and plot_kept.
std::string plot_share_scale(const char* title);

}  // namespace tessera
