#include "models/architectures/decoder_blocks.h"
#include "models/decoder_step.h"
#include "models/weights/weights.h"

namespace tessera {
namespace {

// Chooses the experts of the step's tokens.
// Returns: the step's rows by expert.
ExpertRows route(const DecoderStep& step, const LayerWeights& weights,
                 MatrixView<const float> normed) {
  const LayerOps& ops = step.ops;
  const ExpertRows& all = ops.workspace.expert_rows;
  const auto choices = step.batch.tokens.size() * static_cast<size_t>(ops.config.chosen_experts);
  const ExpertRows rows{.offsets = all.offsets,
                        .tokens = all.tokens.first(choices),
                        .places = all.places.first(choices),
                        .weights = all.weights.first(choices)};
  const MatrixView<float> logits = step.rows(ops.workspace.router_logits);
  const int32_t rank = ops.ranks == nullptr ? 0 : ops.ranks->rank();
  ops.linear(normed, weights.router, {}, logits);
  ops.backend.route({.logits = logits.columns(0, ops.config.experts),
                     .chosen = ops.config.chosen_experts,
                     .normalise = ops.config.normalise_experts,
                     .first_expert = rank * ops.config.own_experts,
                     .rows = rows},
                    ops.stream);
  return rows;
}

// Computes the expert that serves every token, in the place of its input.
// Returns: its output; without data if the model has none.
MatrixView<const float> run_shared(const DecoderStep& step, const LayerWeights& weights,
                                   MatrixView<float> normed) {
  const LayerOps& ops = step.ops;
  if (ops.config.shared_ffn == 0) return {};
  const MatrixView<float> gate_up = step.rows(ops.workspace.shared_gate_up);
  const MatrixView<float> gated = step.rows(ops.workspace.shared_gated);
  ops.linear(normed, weights.shared_gate_up, {}, gate_up);
  ops.backend.silu_mul({.gate_up = gate_up, .out = gated, .activation = ops.config.activation},
                       ops.stream);
  ops.linear(gated, weights.shared_down, {}, normed);
  return normed;
}

}  // namespace

void expert_feed_forward(const DecoderStep& step, const LayerWeights& weights) {
  const LayerOps& ops = step.ops;
  const MatrixView<float> hidden = step.rows(ops.workspace.hidden);
  const MatrixView<float> normed = step.rows(ops.workspace.normed);
  ops.norm_stream({.hidden = hidden, .weight = weights.ffn_norm, .out = normed});
  const ExpertRows rows = route(step, weights, normed);
  const auto count = static_cast<int64_t>(rows.tokens.size());
  const MatrixView<float> chosen = ops.workspace.expert_hidden.first_rows(count);
  const MatrixView<float> gate_up = ops.workspace.gate_up.first_rows(count);
  const MatrixView<float> gated = ops.workspace.gated.first_rows(count);
  // The embed op gathers the rows; it is the same table lookup.
  ops.backend.embed({.tokens = rows.tokens, .table_f32 = normed, .out = chosen}, ops.stream);
  const auto multiply = [&](MatrixView<float> in, std::span<const StackedWeight> experts,
                            MatrixView<float> out) {
    ops.backend.expert_linear({.in = in,
                               .offsets = rows.offsets,
                               .weights = experts,
                               .out = out,
                               .scratch = ops.workspace.linear_scratch},
                              ops.stream);
  };
  multiply(chosen, weights.gate_up, gate_up);
  ops.backend.silu_mul({.gate_up = gate_up, .out = gated, .activation = ops.config.activation},
                       ops.stream);
  multiply(gated, weights.down, chosen);
  MatrixView<const float> gates;
  if (ops.config.shared_gate) {
    gates = step.rows(ops.workspace.router_logits).columns(ops.config.experts, 1);
  }
  ops.backend.combine({.in = chosen,
                       .places = rows.places,
                       .weights = rows.weights,
                       .chosen = ops.config.chosen_experts,
                       .shared = run_shared(step, weights, normed),
                       .shared_gates = gates,
                       .accumulate = ops.adds_stream(),
                       .out = hidden},
                      ops.stream);
  ops.sum_over_ranks(hidden);
}

}  // namespace tessera
