#include "eval/lab/layer_rows.h"

#include <algorithm>

namespace tessera::lab {

Rows layer_rows(const Cache& cache, int32_t layer, Part part, int32_t first, int32_t count) {
  const Shape& shape = cache.shape;
  Rows rows(count, int64_t{shape.kv_heads} * shape.head_dim);
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    const HeadCache& from = cache.at(layer, head);
    const Rows& own = part == Part::keys ? from.keys : from.values;
    for (int32_t row = 0; row < count; ++row) {
      std::ranges::copy(own.row(first + row),
                        rows.row(row).begin() + std::ptrdiff_t{head} * shape.head_dim);
    }
  }
  return rows;
}

void set_layer_rows(Cache& cache, int32_t layer, Part part, int32_t first, const Rows& rows) {
  const Shape& shape = cache.shape;
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    HeadCache& to = cache.at(layer, head);
    Rows& own = part == Part::keys ? to.keys : to.values;
    const MatrixView<const float> from =
        rows.columns(int64_t{head} * shape.head_dim, shape.head_dim);
    for (int64_t row = 0; row < rows.rows(); ++row) {
      std::ranges::copy(from.row(row), own.row(first + row).begin());
    }
  }
}

}  // namespace tessera::lab
