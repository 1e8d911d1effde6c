#include "bench/op_cost.h"

namespace tessera {

// The ranks stay in a cache between the two products.
OpCost op_cost(const LowRankArgs& args) {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  OpCost cost;
  for (const LowRankRows& rows : args.rows) {
    const LowRankMatrix& down = rows.product->down;
    const auto add = [&](const LowRankMatrix& matrix) {
      cost.read_bytes += weight_bytes(matrix.format, matrix.rows, matrix.cols);
      cost.flops += 2 * rows.count * matrix.rows * matrix.cols;
    };
    add(down);
    cost.read_bytes += rows.count * down.cols * kFloatBytes;
    for (const LowRankProduct::Part& part : rows.product->all()) {
      add(part.up);
      cost.read_bytes += rows.count * part.up.rows * kFloatBytes;
      cost.written_bytes += rows.count * part.up.rows * kFloatBytes;
    }
  }
  return cost;
}

}  // namespace tessera
