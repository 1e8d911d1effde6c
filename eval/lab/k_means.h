#pragma once

#include <cstdint>
#include <vector>

#include "eval/lab/rows.h"

namespace tessera::lab {

struct Clusters {
  Rows centroids;               // means of their members, [clusters, cols]
  std::vector<int32_t> labels;  // the cluster of each row
  std::vector<int32_t> sizes;   // of each cluster
};

enum class Distance { euclidean, cosine };

// Clusters rows by Lloyd's algorithm from evenly spaced rows, until no label changes or after so
// many iterations. Of equally near centroids the first one counts as nearer. An empty cluster
// keeps its centroid.
// Requires: 0 < clusters <= rows.rows.
Clusters k_means(MatrixView<const float> rows, int32_t clusters, int32_t iterations,
                 Distance distance);

// Returns: rows divided by their norms. A row of zeros stays.
Rows unit_rows(MatrixView<const float> rows);

}  // namespace tessera::lab
