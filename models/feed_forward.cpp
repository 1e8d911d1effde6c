#include "models/feed_forward.h"

#include "models/decoder_step.h"
#include "models/weights.h"

namespace tessera {

void dense_feed_forward(const DecoderStep& step, const LayerWeights& weights) {
  const LayerOps& ops = step.ops;
  const MatrixView<float> hidden = step.rows(ops.workspace.hidden);
  const MatrixView<float> gate_up = step.rows(ops.workspace.gate_up);
  ops.linear_of_norm(
      {.hidden = hidden, .weight = weights.ffn_norm, .out = step.rows(ops.workspace.normed)},
      weights.gate_up.front(), weights.gate_up_bias, gate_up);
  ops.add_linear_of_gate(gate_up, step.rows(ops.workspace.gated), weights.down.front(),
                         weights.down_bias, hidden);
}

}  // namespace tessera
