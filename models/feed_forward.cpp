#include "models/feed_forward.h"

#include "models/decoder_step.h"
#include "models/weights.h"

namespace tessera {

void dense_feed_forward(const DecoderStep& step, const LayerWeights& weights) {
  const LayerOps& ops = step.ops;
  const MatrixView<float> hidden = step.rows(ops.workspace.hidden);
  const MatrixView<float> normed = step.rows(ops.workspace.normed);
  const MatrixView<float> gate_up = step.rows(ops.workspace.gate_up);
  const MatrixView<float> gated = step.rows(ops.workspace.gated);
  ops.norm_stream(hidden, weights.ffn_norm, 1, normed);
  ops.linear(normed, weights.gate_up.front(), weights.gate_up_bias, gate_up);
  ops.backend.silu_mul({.gate_up = gate_up, .out = gated, .activation = ops.config.activation},
                       ops.stream);
  ops.add_linear(gated, weights.down.front(), weights.down_bias, hidden);
}

}  // namespace tessera
