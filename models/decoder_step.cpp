#include "models/decoder_step.h"

namespace tessera {

void LayerOps::norm(MatrixView<const float> in, std::span<const float> weight,
                    MatrixView<float> out) const {
  backend.rms_norm({.in = in, .weight = weight, .epsilon = config.norm_epsilon, .out = out},
                   stream);
}

void LayerOps::norm_stream(MatrixView<const float> hidden, std::span<const float> weight,
                           float scale, MatrixView<float> out) const {
  const float residual = config.multipliers.residual;
  backend.rms_norm({.in = hidden,
                    .weight = weight,
                    .epsilon = config.norm_epsilon / (residual * residual),
                    .scale = scale,
                    .out = out},
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
                          std::span<const float> bias, MatrixView<float> hidden) const {
  multiply(in, weight, adds_stream() ? bias : std::span<const float>(), adds_stream(), hidden);
  sum_over_ranks(hidden);
}

bool LayerOps::adds_stream() const {
  return ranks == nullptr || ranks->rank() == 0;
}

void LayerOps::sum_over_ranks(MatrixView<float> hidden) const {
  if (ranks != nullptr) {
    ranks->all_reduce_sum({hidden.data, static_cast<size_t>(hidden.rows * hidden.stride)}, stream);
  }
}

}  // namespace tessera
