#include "models/transformer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "models/checkpoint.h"
#include "models/decode_steps.h"
#include "models/status_macros.h"
#include "models/weights.h"
#include "models/workspace.h"

namespace tessera {
namespace {

// Workspace views limited to the rows of one step.
struct StepViews {
  StepViews(const ModelConfig& config, const Workspace::Views& all, const Batch& batch) {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    hidden = all.hidden.first_rows(tokens);
    normed = all.normed.first_rows(tokens);
    qkv = all.qkv.first_rows(tokens);
    queries = qkv.columns(0, config.query_width());
    keys = qkv.columns(config.query_width(), config.kv_width());
    rotated = qkv.columns(0, config.query_width() + config.kv_width());
    values = qkv.columns(config.query_width() + config.kv_width(), config.kv_width());
    attended = all.attended.first_rows(tokens);
    gate_up = all.gate_up.first_rows(tokens);
    gated = all.gated.first_rows(tokens);
  }

  MatrixView<float> hidden, normed, qkv, queries, keys, rotated, values, attended, gate_up, gated;
};

bool all_below(std::span<const int32_t> values, int32_t limit) {
  return std::all_of(values.begin(), values.end(),
                     [limit](int32_t value) { return value >= 0 && value < limit; });
}

class Decoder final : public Transformer {
 public:
  Decoder(ModelConfig config, const TransformerOptions& options, const Backend& backend,
          Weights weights, Workspace workspace)
      : config_(std::move(config)),
        options_(options),
        ops_(backend),
        weights_(std::move(weights)),
        workspace_(std::move(workspace)) {}

  void prepare(const KvPagesView& pages, Stream stream) override {
    const bool records = options_.ranks == nullptr || options_.ranks->records_sums();
    if (ops_.record != nullptr && records) {
      decode_steps_ = std::make_unique<DecodeSteps>(
          ops_, options_.limits, pages, [&](const Batch& batch) { compute(batch, pages, stream); },
          stream);
    }
  }

  void forward(const Batch& batch, const KvPagesView& pages, Stream stream) override {
    check(batch, pages);
    if (decode_steps_ == nullptr || !decode_steps_->start(batch, pages, stream)) {
      compute(batch, pages, stream);
    }
    computed_tokens_ = static_cast<int32_t>(batch.tokens.size());
  }

  // The embed op gathers the rows of the residual stream; it is the same table lookup.
  void logits(std::span<const int32_t> rows, MatrixView<float> logits, Stream stream) override {
    const auto wanted = static_cast<int32_t>(rows.size());
    TESSERA_CHECK(wanted > 0 && wanted <= options_.max_logits_rows, "rows of logits");
    TESSERA_CHECK(all_below(rows, computed_tokens_), "a row outside the batch");
    TESSERA_CHECK(logits.rows == wanted && logits.cols == config_.vocab, "logits of another shape");
    const MatrixView<float> hidden = workspace_.views().wanted.first_rows(wanted);
    ops_.embed({.tokens = rows,
                .table = {},
                .table_f32 = workspace_.views().hidden.first_rows(computed_tokens_),
                .out = hidden},
               stream);
    norm(hidden, weights_.views().final_norm, hidden, stream);
    linear(hidden, weights_.views().head, {}, logits, stream);
  }

  int32_t max_logits_rows() const override { return options_.max_logits_rows; }

  const ModelConfig& config() const override { return config_; }
  WeightFormat weight_format() const override { return options_.weights; }
  int64_t weight_bytes() const override { return weights_.bytes(); }
  int64_t workspace_bytes() const override { return workspace_.bytes(); }

 private:
  void compute(const Batch& batch, const KvPagesView& pages, Stream stream) const {
    const StepViews step(config_, workspace_.views(), batch);
    ops_.embed({.tokens = batch.tokens,
                .table = weights_.views().embedding,
                .table_f32 = weights_.views().embedding_f32,
                .out = step.hidden},
               stream);
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
      const LayerWeights& weights = weights_.views().layers[static_cast<size_t>(layer)];
      attend(batch, pages, layer, weights, step, stream);
      feed_forward(weights, step, stream);
    }
  }

  // hidden += attention_out(attention(rope(qkv(norm(hidden)))))
  void attend(const Batch& batch, const KvPagesView& pages, int32_t layer,
              const LayerWeights& weights, const StepViews& step, Stream stream) const {
    norm(step.hidden, weights.attention_norm, step.normed, stream);
    linear(step.normed, weights.qkv, weights.qkv_bias, step.qkv, stream);
    rope(step.rotated, batch.positions, stream);
    ops_.kv_store({.keys = step.keys,
                   .values = step.values,
                   .sequences = batch.sequences,
                   .pages = pages,
                   .layer = layer,
                   .dense = workspace_.views().dense},
                  stream);
    const float scale = 1 / std::sqrt(static_cast<float>(config_.head_dim));
    const bool scores = !batch.scorings.empty();
    const MatrixView<float> log_sums =
        scores ? workspace_.views().log_sums.first_rows(step.queries.rows) : MatrixView<float>{};
    ops_.attention({.queries = step.queries,
                    .sequences = batch.sequences,
                    .pages = pages,
                    .layer = layer,
                    .query_heads = config_.heads,
                    .scale = scale,
                    .sliding_window = config_.sliding_window,
                    .dense = workspace_.views().dense,
                    .out = step.attended,
                    .log_sums = log_sums,
                    .scorings = batch.scorings,
                    .weights = workspace_.views().score_weights,
                    .scratch = workspace_.views().attention_scratch,
                    .share_reads = batch.share_reads},
                   stream);
    if (scores) {
      ops_.kv_score({.queries = step.queries,
                     .log_sums = log_sums,
                     .sequences = batch.sequences,
                     .scorings = batch.scorings,
                     .weights = workspace_.views().score_weights,
                     .pages = pages,
                     .layer = layer,
                     .query_heads = config_.heads,
                     .scale = scale,
                     .dense = workspace_.views().dense},
                    stream);
    }
    add_linear(step.attended, weights.attention_out, step.hidden, stream);
  }

  // hidden += down(silu(gate(norm(hidden))) * up(norm(hidden)))
  void feed_forward(const LayerWeights& weights, const StepViews& step, Stream stream) const {
    norm(step.hidden, weights.ffn_norm, step.normed, stream);
    linear(step.normed, weights.gate_up, {}, step.gate_up, stream);
    ops_.silu_mul({.gate_up = step.gate_up, .out = step.gated}, stream);
    add_linear(step.gated, weights.down, step.hidden, stream);
  }

  void norm(MatrixView<const float> in, std::span<const float> weight, MatrixView<float> out,
            Stream stream) const {
    ops_.rms_norm({.in = in, .weight = weight, .epsilon = config_.norm_epsilon, .out = out},
                  stream);
  }

  void linear(MatrixView<const float> in, const PackedWeight& weight, std::span<const float> bias,
              MatrixView<float> out, Stream stream) const {
    ops_.linear({.in = in,
                 .weight = &weight,
                 .bias = bias,
                 .accumulate = false,
                 .out = out,
                 .scratch = workspace_.views().linear_scratch},
                stream);
  }

  // hidden += in * weight. With ranks, each one computes a partial sum, and only rank 0 adds the
  // old residual stream to its own.
  void add_linear(MatrixView<const float> in, const PackedWeight& weight, MatrixView<float> hidden,
                  Stream stream) const {
    Communicator* ranks = options_.ranks;
    ops_.linear({.in = in,
                 .weight = &weight,
                 .bias = {},
                 .accumulate = ranks == nullptr || ranks->rank() == 0,
                 .out = hidden,
                 .scratch = workspace_.views().linear_scratch},
                stream);
    if (ranks != nullptr) {
      ranks->all_reduce_sum({hidden.data, static_cast<size_t>(hidden.rows * hidden.stride)},
                            stream);
    }
  }

  void rope(MatrixView<float> heads, std::span<const int32_t> positions, Stream stream) const {
    ops_.rope({.heads = heads,
               .positions = positions,
               .cos = workspace_.views().cos.data,
               .sin = workspace_.views().sin.data,
               .head_dim = config_.head_dim},
              stream);
  }

  void check(const Batch& batch, const KvPagesView& pages) const {
    const auto tokens = static_cast<int32_t>(batch.tokens.size());
    TESSERA_CHECK(tokens > 0 && tokens <= options_.limits.tokens, "tokens of a step");
    TESSERA_CHECK(std::ssize(batch.positions) == tokens, "one position for each token");
    TESSERA_CHECK(all_below(batch.tokens, config_.vocab), "a token outside the vocabulary");
    TESSERA_CHECK(all_below(batch.positions, options_.limits.context), "a position too high");
    TESSERA_CHECK(pages.layers == config_.layers && pages.kv_heads == config_.kv_heads &&
                      pages.head_dim == config_.head_dim,
                  "pages of another model");
    TESSERA_CHECK(std::ssize(batch.sequences) <= options_.limits.sequences, "sequences of a step");
    TESSERA_CHECK(batch.scorings.empty() || batch.scorings.size() == batch.sequences.size(),
                  "a scoring for each sequence");
    int32_t row = 0;
    for (const SequenceSpan& sequence : batch.sequences) {
      TESSERA_CHECK(sequence.first_row == row && sequence.count > 0, "sequences follow each other");
      TESSERA_CHECK(sequence.context + sequence.count <= options_.limits.context,
                    "a sequence beyond the limits");
      row += sequence.count;
    }
    TESSERA_CHECK(row == tokens, "sequences cover the batch");
  }

  const ModelConfig config_;
  const TransformerOptions options_;
  const Backend& ops_;
  const Weights weights_;
  const Workspace workspace_;
  std::unique_ptr<DecodeSteps> decode_steps_;  // null: nothing is recorded
  int32_t computed_tokens_ = 0;  // rows of the residual stream after the last forward()
};

absl::Status check_options(const TransformerOptions& options, const ModelConfig& config) {
  const StepLimits& limits = options.limits;
  if (limits.tokens < 1 || limits.sequences < 1 || limits.context < 1 ||
      options.max_logits_rows < 1) {
    return absl::InvalidArgumentError("the limits of a step must be at least 1");
  }
  if (limits.context > config.context) {
    return absl::InvalidArgumentError(absl::StrCat("a context of ", limits.context,
                                                   " tokens was asked for, but the model has ",
                                                   config.context, " (max_position_embeddings)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::load(
    const std::filesystem::path& directory, const TransformerOptions& options,
    const Backend& backend, Stream /*stream*/) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig whole, read_model_config(directory));
  TESSERA_RETURN_IF_ERROR(check_options(options, whole));
  const Shard shard =
      options.ranks == nullptr ? Shard{} : Shard{options.ranks->rank(), options.ranks->ranks()};
  TESSERA_RETURN_IF_ERROR(check_divides(whole, shard.ranks));
  ModelConfig config = shard_config(whole, shard.ranks);
  TESSERA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(directory));
  TESSERA_ASSIGN_OR_RETURN(Weights weights,
                           Weights::load(whole, shard, checkpoint, options.weights, backend));
  TESSERA_ASSIGN_OR_RETURN(
      Workspace workspace,
      Workspace::create(config, options.limits, options.max_logits_rows, backend));
  return std::unique_ptr<Transformer>(
      new Decoder(std::move(config), options, backend, std::move(weights), std::move(workspace)));
}

}  // namespace tessera
