#include "models/decoder_step.h"

namespace tessera {

void LayerOps::norm(MatrixView<const float> in, std::span<const float> weight,
                    MatrixView<float> out) const {
  backend.rms_norm({.in = in, .weight = weight, .epsilon = config.norm_epsilon, .out = out},
                   stream);
}

void LayerOps::multiply(MatrixView<const float> in, const StackedWeight& weight,
                        std::span<const float> bias, bool accumulate, MatrixView<float> out) const {
  int64_t first = 0;
  for (const PackedWeight& part : weight.all()) {
    const auto rows = static_cast<size_t>(part.rows);
    backend.linear({.in = in,
                    .weight = &part,
                    .bias = bias.empty() ? bias : bias.subspan(static_cast<size_t>(first), rows),
                    .accumulate = accumulate,
                    .out = out.columns(first, part.rows),
                    .scratch = workspace.linear_scratch},
                   stream);
    first += part.rows;
  }
}

void LayerOps::linear(MatrixView<const float> in, const StackedWeight& weight,
                      std::span<const float> bias, MatrixView<float> out) const {
  multiply(in, weight, bias, false, out);
}

void LayerOps::add_linear(MatrixView<const float> in, const StackedWeight& weight,
                          MatrixView<float> hidden) const {
  multiply(in, weight, {}, ranks == nullptr || ranks->rank() == 0, hidden);
  if (ranks != nullptr) {
    ranks->all_reduce_sum({hidden.data, static_cast<size_t>(hidden.rows * hidden.stride)}, stream);
  }
}

}  // namespace tessera
