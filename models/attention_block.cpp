#include <cmath>
#include <span>

#include "models/architectures/decoder_blocks.h"
#include "models/decoder_step.h"
#include "models/weights/weights.h"

namespace tessera {
namespace {

// The step's rows of the product qkv, by columns.
struct QkvColumns {
  MatrixView<float> queries, keys, values;
  MatrixView<float> rotated;  // queries and keys
};

// Returns: qkv(norm(hidden))
QkvColumns project(const DecoderStep& step, const LayerWeights& weights) {
  const LayerOps& ops = step.ops;
  const MatrixView<float> qkv = step.rows(ops.workspace.qkv);
  ops.linear_of_norm({.hidden = step.rows(ops.workspace.hidden),
                      .weight = weights.attention_norm,
                      .out = step.rows(ops.workspace.normed)},
                     weights.qkv, weights.qkv_bias, qkv, step.adapted(weights, &LoraLayer::qkv));
  const int32_t queries = ops.config.query_width();
  const int32_t keys = ops.config.kv_width();
  return {.queries = qkv.columns(0, queries),
          .keys = qkv.columns(queries, keys),
          .values = qkv.columns(queries + keys, keys),
          .rotated = qkv.columns(0, queries + keys)};
}

void rotate(const DecoderStep& step, MatrixView<float> heads, const RopeTables& tables) {
  const LayerOps& ops = step.ops;
  ops.backend.rope({.heads = heads,
                    .positions = step.batch.positions,
                    .cos = tables.cos.data,
                    .sin = tables.sin.data,
                    .head_dim = ops.config.head_dim,
                    .rotary_dim = ops.config.rotary_width()},
                   ops.stream);
}

// The same, with a norm of each head of q and of k.
QkvColumns project_and_norm(const DecoderStep& step, const LayerWeights& weights) {
  const QkvColumns qkv = project(step, weights);
  step.ops.norm(qkv.queries, weights.query_norm, qkv.queries);
  step.ops.norm(qkv.keys, weights.key_norm, qkv.keys);
  return qkv;
}

// The tables of one layer's queries and keys.
struct LayerRope {
  const RopeTables& queries;
  const RopeTables& keys;
};

LayerRope rope_of(const LayerOps& ops, int32_t layer) {
  const Workspace::Views& workspace = ops.workspace;
  if (ops.config.rotates_locally(layer)) return {workspace.local_rope, workspace.local_rope};
  const bool grows = workspace.query_rope.cos.data != nullptr;
  return {grows ? workspace.query_rope : workspace.rope, workspace.rope};
}

void rotate_apart(const DecoderStep& step, const QkvColumns& qkv, const LayerRope& tables) {
  if (&tables.queries == &tables.keys) {
    rotate(step, qkv.rotated, tables.keys);
  } else {
    rotate(step, qkv.queries, tables.queries);
    rotate(step, qkv.keys, tables.keys);
  }
}

RopeTable table_of(const RopeTables& tables) {
  return {tables.cos.data, tables.sin.data};
}

StepRope rope_in_store(const DecoderStep& step, const QkvColumns& qkv, const LayerRope& tables) {
  return {.rotary_dim = step.ops.config.rotary_width(),
          .positions = step.batch.positions,
          .queries = qkv.queries,
          .query_table = table_of(tables.queries),
          .key_table = table_of(tables.keys)};
}

void rotate_and_store(const DecoderStep& step, const QkvColumns& qkv, int32_t layer) {
  const LayerOps& ops = step.ops;
  StepRope rope;
  if (ops.config.rotates(layer)) {
    const LayerRope tables = rope_of(ops, layer);
    if (ops.backend.applies_rope_in_store) {
      rope = rope_in_store(step, qkv, tables);
    } else {
      rotate_apart(step, qkv, tables);
    }
  }
  KeyFrame frame = ops.key_frames.of(layer);
  frame.queries = qkv.queries;
  ops.backend.kv_store({.keys = qkv.keys,
                        .values = qkv.values,
                        .sequences = step.batch.sequences,
                        .pages = step.pages,
                        .layer = layer,
                        .dense = ops.workspace.dense,
                        .rope = rope,
                        .frame = frame},
                       ops.stream);
}

// Computes attention, and token scores if the batch asks for them.
// Returns: attention's rows, [tokens, query_width]
MatrixView<float> read_pages(const DecoderStep& step, MatrixView<float> queries, int32_t layer) {
  const LayerOps& ops = step.ops;
  const Workspace::Views& workspace = ops.workspace;
  const float factor = ops.config.multipliers.attention;
  const float scale = factor > 0 ? factor : 1 / std::sqrt(static_cast<float>(ops.config.head_dim));
  const int32_t window = ops.config.window_of(layer);
  // Layers with a window keep what it sees, so their tokens need no scores.
  const bool scores = !step.batch.scorings.empty() && window == 0;
  const MatrixView<float> log_sums = scores ? step.rows(workspace.log_sums) : MatrixView<float>{};
  const MatrixView<float> attended = step.rows(workspace.attended);
  ops.backend.attention({.queries = queries,
                         .sequences = step.batch.sequences,
                         .pages = step.pages,
                         .layer = layer,
                         .query_heads = ops.config.heads,
                         .scale = scale,
                         .sliding_window = window,
                         .dense = workspace.dense,
                         .out = attended,
                         .log_sums = log_sums,
                         .scorings = scores ? step.batch.scorings : std::span<const KvScoring>{},
                         .weights = workspace.score_weights,
                         .plan = workspace.attention_plan,
                         .scratch = workspace.attention_scratch,
                         .share_reads = step.batch.share_reads},
                        ops.stream);
  if (scores) {
    ops.backend.kv_score({.queries = queries,
                          .log_sums = log_sums,
                          .sequences = step.batch.sequences,
                          .scorings = step.batch.scorings,
                          .weights = workspace.score_weights,
                          .residual = step.rows(workspace.hidden),
                          .pages = step.pages,
                          .layer = layer,
                          .query_heads = ops.config.heads,
                          .scale = scale,
                          .dense = workspace.dense},
                         ops.stream);
  }
  return attended;
}

// hidden += attention_out(attention(rope(qkv)))
void add_attention(const DecoderStep& step, const LayerWeights& weights, const QkvColumns& qkv,
                   int32_t layer) {
  rotate_and_store(step, qkv, layer);
  const MatrixView<float> attended = read_pages(step, qkv.queries, layer);
  step.ops.add_linear(attended, weights.attention_out, weights.attention_out_bias,
                      step.rows(step.ops.workspace.hidden),
                      step.adapted(weights, &LoraLayer::attention_out));
}

}  // namespace

void plan_attention(const DecoderStep& step) {
  const LayerOps& ops = step.ops;
  if (ops.backend.plan_attention == nullptr) return;
  ops.backend.plan_attention({.sequences = step.batch.sequences,
                              .scorings = step.batch.scorings,
                              .weights = ops.workspace.score_weights,
                              .pages = step.pages,
                              .query_heads = ops.config.heads,
                              .sliding_window = ops.config.sliding_window,
                              .share_reads = step.batch.share_reads,
                              .plan = ops.workspace.attention_plan},
                             ops.stream);
}

void attend(const DecoderStep& step, const LayerWeights& weights, int32_t layer) {
  add_attention(step, weights, project(step, weights), layer);
}

void attend_with_qk_norm(const DecoderStep& step, const LayerWeights& weights, int32_t layer) {
  add_attention(step, weights, project_and_norm(step, weights), layer);
}

void attend_between_norms(const DecoderStep& step, const LayerWeights& weights, int32_t layer) {
  const QkvColumns qkv = project_and_norm(step, weights);
  rotate_and_store(step, qkv, layer);
  const Workspace::Views& workspace = step.ops.workspace;
  step.ops.add_norm_of_linear(read_pages(step, qkv.queries, layer), weights.attention_out,
                              weights.norm_behind_attention, step.rows(workspace.normed),
                              step.rows(workspace.hidden),
                              step.adapted(weights, &LoraLayer::attention_out));
}

}  // namespace tessera
