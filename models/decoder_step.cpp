#include "models/decoder_step.h"

namespace tessera {

void LayerOps::norm(MatrixView<const float> in, std::span<const float> weight,
                    MatrixView<float> out) const {
  backend.rms_norm({.in = in, .weight = weight, .epsilon = config.norm_epsilon, .out = out},
                   stream);
}

void LayerOps::linear(MatrixView<const float> in, const PackedWeight& weight,
                      std::span<const float> bias, MatrixView<float> out) const {
  backend.linear({.in = in,
                  .weight = &weight,
                  .bias = bias,
                  .accumulate = false,
                  .out = out,
                  .scratch = workspace.linear_scratch},
                 stream);
}

void LayerOps::add_linear(MatrixView<const float> in, const PackedWeight& weight,
                          MatrixView<float> hidden) const {
  backend.linear({.in = in,
                  .weight = &weight,
                  .bias = {},
                  .accumulate = ranks == nullptr || ranks->rank() == 0,
                  .out = hidden,
                  .scratch = workspace.linear_scratch},
                 stream);
  if (ranks != nullptr) {
    ranks->all_reduce_sum({hidden.data, static_cast<size_t>(hidden.rows * hidden.stride)}, stream);
  }
}

}  // namespace tessera
