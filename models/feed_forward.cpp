#include "models/architectures/decoder_blocks.h"
#include "models/decoder_step.h"
#include "models/weights/weights.h"

namespace tessera {

namespace {

// Returns: gate_up(norm(hidden))
MatrixView<float> project_to_gate(const DecoderStep& step, const LayerWeights& weights) {
  const LayerOps& ops = step.ops;
  const MatrixView<float> gate_up = step.rows(ops.workspace.gate_up);
  ops.linear_of_norm({.hidden = step.rows(ops.workspace.hidden),
                      .weight = weights.ffn_norm,
                      .out = step.rows(ops.workspace.normed)},
                     weights.gate_up.front(), weights.gate_up_bias, gate_up,
                     step.adapted(weights, &LoraLayer::gate_up));
  return gate_up;
}

}  // namespace

void dense_feed_forward(const DecoderStep& step, const LayerWeights& weights) {
  const MatrixView<float> gate_up = project_to_gate(step, weights);
  const LayerOps& ops = step.ops;
  ops.add_linear_of_gate(gate_up, step.rows(ops.workspace.gated), weights.down.front(),
                         weights.down_bias, step.rows(ops.workspace.hidden),
                         step.adapted(weights, &LoraLayer::down));
}

void dense_feed_forward_between_norms(const DecoderStep& step, const LayerWeights& weights) {
  const MatrixView<float> gate_up = project_to_gate(step, weights);
  const LayerOps& ops = step.ops;
  const MatrixView<float> gated = step.rows(ops.workspace.gated);
  ops.backend.silu_mul({.gate_up = gate_up, .out = gated, .activation = ops.config.activation},
                       ops.stream);
  ops.add_norm_of_linear(gated, weights.down.front(), weights.norm_behind_ffn,
                         step.rows(ops.workspace.normed), step.rows(ops.workspace.hidden),
                         step.adapted(weights, &LoraLayer::down));
}

}  // namespace tessera
