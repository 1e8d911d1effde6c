#include "eval/lab/k_means.h"

#include <algorithm>
#include <cmath>

#include "eval/lab/attention.h"

namespace tessera::lab {
namespace {

// Returns: what is added to a row's product with a centroid, so that the nearest has the largest.
float offset_of(std::span<const float> centroid, Distance distance) {
  return distance == Distance::euclidean ? -dot(centroid, centroid) / 2 : 0;
}

bool assign(MatrixView<const float> rows, Distance distance, Clusters& clusters) {
  const Rows directions =
      distance == Distance::cosine ? unit_rows(clusters.centroids.view()) : clusters.centroids;
  std::vector<float> offsets;
  for (int64_t i = 0; i < directions.rows(); ++i) {
    offsets.push_back(offset_of(directions.row(i), distance));
  }
  bool changed = false;
  std::ranges::fill(clusters.sizes, 0);
  for (int64_t row = 0; row < rows.rows; ++row) {
    int32_t nearest = 0;
    float most = dot(rows.row(row), directions.row(0)) + offsets[0];
    for (int32_t i = 1; i < directions.rows(); ++i) {
      const float product = dot(rows.row(row), directions.row(i)) + offsets[static_cast<size_t>(i)];
      if (product <= most) continue;
      most = product;
      nearest = i;
    }
    int32_t& label = clusters.labels[static_cast<size_t>(row)];
    changed = changed || label != nearest;
    label = nearest;
    ++clusters.sizes[static_cast<size_t>(nearest)];
  }
  return changed;
}

void average(MatrixView<const float> rows, Clusters& clusters) {
  Rows sums(clusters.centroids.rows(), rows.cols);
  for (int64_t row = 0; row < rows.rows; ++row) {
    add_scaled(sums.row(clusters.labels[static_cast<size_t>(row)]), 1, rows.row(row));
  }
  for (int64_t i = 0; i < sums.rows(); ++i) {
    const int32_t size = clusters.sizes[static_cast<size_t>(i)];
    if (size == 0) continue;
    std::ranges::transform(sums.row(i), clusters.centroids.row(i).begin(),
                           [&](float sum) { return sum / static_cast<float>(size); });
  }
}

}  // namespace

Rows unit_rows(MatrixView<const float> rows) {
  Rows unit(rows.cols);
  unit.add(rows);
  for (int64_t i = 0; i < unit.rows(); ++i) {
    const float norm = std::sqrt(dot(unit.row(i), unit.row(i)));
    if (norm == 0) continue;
    for (float& element : unit.row(i)) element /= norm;
  }
  return unit;
}

Clusters k_means(MatrixView<const float> rows, int32_t clusters, int32_t iterations,
                 Distance distance) {
  Clusters made{.centroids = Rows(rows.cols),
                .labels = std::vector<int32_t>(static_cast<size_t>(rows.rows), -1),
                .sizes = std::vector<int32_t>(static_cast<size_t>(clusters))};
  for (int32_t i = 0; i < clusters; ++i) made.centroids.add(rows.row(i * rows.rows / clusters));
  for (int32_t i = 0; i < iterations && assign(rows, distance, made); ++i) average(rows, made);
  return made;
}

}  // namespace tessera::lab
