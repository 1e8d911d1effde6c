#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "eval/report/report.h"

namespace tessera {

struct FrontierPoint {
  double bytes = 0;  // fewer are better
  double score = 0;
};

// Which points no other one beats, being at least as good in both and better in one; in ascending
// order of bytes.
std::vector<size_t> pareto_front(const std::vector<FrontierPoint>& points, Better better);

// The colour of a subject, in every plot and table.
std::string subject_color(size_t place);

// Plots as <svg> elements; empty where the report has nothing to show in them.
std::string plot_kl_frontier(const Report& report);
std::string plot_accuracy_frontier(const Report& report);
std::string plot_course(const Report& report, const CourseReport& course);
std::string plot_grid(const GridReport& grid, size_t subject);
std::string plot_kept(const KeptReport& kept);

// The key to the colours of plot_grid and plot_kept.
std::string plot_share_scale(const char* title);

}  // namespace tessera
