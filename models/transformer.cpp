#include "models/transformer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "models/architectures/architecture.h"
#include "models/architectures/decoder_blocks.h"
#include "models/architectures/rope_config.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/shard.h"
#include "models/decode_steps.h"
#include "models/decoder_step.h"
#include "models/load_transformer.h"
#include "models/lora/adapter.h"
#include "models/weights/key_frames.h"
#include "models/weights/weights.h"
#include "models/workspace.h"

namespace tessera {
namespace {

bool all_below(std::span<const int32_t> values, int32_t limit) {
  return std::all_of(values.begin(), values.end(),
                     [limit](int32_t value) { return value >= 0 && value < limit; });
}

Shard shard_of(const TransformerOptions& options) {
  return options.ranks == nullptr ? Shard{} : Shard{options.ranks->rank(), options.ranks->ranks()};
}

class Decoder final : public Transformer {
 public:
  Decoder(const ModelConfig& whole, const TransformerOptions& options, const Backend& backend,
          Weights weights, KeyFrames key_frames, Workspace workspace)
      : whole_(whole),
        config_(shard_config(whole, shard_of(options).ranks)),
        architecture_(architecture_of(config_)),
        options_(options),
        backend_(backend),
        weights_(std::move(weights)),
        key_frames_(std::move(key_frames)),
        workspace_(std::move(workspace)) {}

  void prepare(const KvPagesView& pages, Stream stream) override {
    const bool records = options_.ranks == nullptr || options_.ranks->records_sums();
    if (backend_.record != nullptr && records) {
      decode_steps_ = std::make_unique<DecodeSteps>(
          backend_, options_.limits, pages,
          [&](const Batch& batch) { compute(batch, pages, stream); }, stream);
    }
  }

  void forward(const Batch& batch, const KvPagesView& pages, Stream stream) override {
    check(batch, pages);
    if (decode_steps_ == nullptr || !decode_steps_->start(batch, pages, stream)) {
      compute(batch, pages, stream);
    }
    computed_tokens_ = static_cast<int32_t>(batch.tokens.size());
  }

  void logits(std::span<const int32_t> rows, MatrixView<float> logits, Stream stream) override {
    TESSERA_CHECK(std::cmp_equal(logits.rows, rows.size()) && logits.cols == config_.vocab,
                  "logits of another shape");
    const float scale = 1 / config_.multipliers.logits_divisor;
    layer_ops(stream).linear_of_norm(final_norm(rows, scale, stream), weights_.views().head, {},
                                     logits);
  }

  MatrixView<const float> hidden(std::span<const int32_t> rows, Stream stream) override {
    const StreamNorm norm = final_norm(rows, 1, stream);
    layer_ops(stream).norm_stream(norm);
    return norm.out;
  }

  int32_t max_logits_rows() const override { return options_.max_logits_rows; }

  absl::StatusOr<int64_t> measure_adapter(const std::filesystem::path& path) const override {
    TESSERA_RETURN_IF_ERROR(check_serves_adapters());
    return LoraAdapter::measure(path, lora_base());
  }
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> load_adapter(
      const std::filesystem::path& path) const override {
    TESSERA_RETURN_IF_ERROR(check_serves_adapters());
    return LoraAdapter::load(path, lora_base());
  }

  const ModelConfig& config() const override { return config_; }
  std::string weight_formats() const override { return weights_.formats(); }
  int64_t weight_bytes() const override { return weights_.bytes(); }
  int64_t workspace_bytes() const override { return workspace_.bytes(); }

 private:
  void compute(const Batch& batch, const KvPagesView& pages, Stream stream) const {
    const DecoderStep step{layer_ops(stream), batch, pages};
    const WeightViews& views = weights_.views();
    const bool packed = views.embedding_packed.data != nullptr;
    backend_.embed({.tokens = batch.tokens,
                    .table = views.embedding,
                    .table_f32 = views.embedding_f32,
                    .packed = packed ? &views.embedding_packed : nullptr,
                    .scale = config_.multipliers.embedding / config_.multipliers.residual,
                    .out = step.rows(workspace_.views().hidden)},
                   stream);
    plan_attention(step);
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
      const LayerWeights& weights = weights_.views().layers[static_cast<size_t>(layer)];
      architecture_.attention(step, weights, layer);
      architecture_.feed_forward(step, weights);
    }
  }

  // Gathers some rows of the last step in the workspace, by the embed op; it is the same table
  // lookup.
  // Returns: their final norm, times `scale`, in place.
  StreamNorm final_norm(std::span<const int32_t> rows, float scale, Stream stream) const {
    const auto wanted = static_cast<int32_t>(rows.size());
    TESSERA_CHECK(wanted > 0 && wanted <= options_.max_logits_rows, "rows of logits");
    TESSERA_CHECK(all_below(rows, computed_tokens_), "a row outside the batch");
    const MatrixView<float> gathered = workspace_.views().wanted.first_rows(wanted);
    backend_.embed({.tokens = rows,
                    .table_f32 = workspace_.views().hidden.first_rows(computed_tokens_),
                    .out = gathered},
                   stream);
    return {gathered, weights_.views().final_norm, scale, gathered};
  }

  LayerOps layer_ops(Stream stream) const {
    return {backend_, config_, workspace_.views(), key_frames_, options_.ranks, stream};
  }

  LoraBase lora_base() const { return {whole_, shard_of(options_), weights_.views(), backend_}; }

  absl::Status check_serves_adapters() const {
    if (backend_.low_rank != nullptr) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("the backend ", backend_.name, " serves no adapters (LoRA); the CPU does"));
  }

  void check_adapters(const Batch& batch) const {
    int32_t row = 0;
    for (const AdapterRows& rows : batch.adapters) {
      TESSERA_CHECK(rows.adapter != nullptr && rows.first_row >= row && rows.count > 0,
                    "adapters of rows in order");
      row = rows.first_row + rows.count;
    }
    TESSERA_CHECK(std::cmp_less_equal(row, batch.tokens.size()), "adapters of rows in the batch");
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
      TESSERA_CHECK(options_.limits.selects || !sequence.selects(),
                    "a sequence selects tiles, for which the workspace has no room");
      row += sequence.count;
    }
    TESSERA_CHECK(row == tokens, "sequences cover the batch");
    check_adapters(batch);
  }

  const ModelConfig whole_;   // of all ranks
  const ModelConfig config_;  // of this one
  const Architecture& architecture_;
  const TransformerOptions options_;
  const Backend& backend_;
  const Weights weights_;
  const KeyFrames key_frames_;
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
  if (limits.context > longest_context(config)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a context of ", limits.context, " tokens was asked for, but the model has ",
                     longest_context(config), " (max_position_embeddings and the RoPE scaling)"));
  }
  return absl::OkStatus();
}

absl::Status check_experts(const ModelConfig& config, const Backend& backend) {
  if (config.experts == 0 || backend.expert_linear != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(config.architecture, ": the backend ", backend.name,
                                               " has no kernels for a mixture of experts"));
}

absl::Status serves_no_adapters() {
  return absl::UnimplementedError("the model serves no adapters (LoRA)");
}

}  // namespace

absl::StatusOr<int64_t> Transformer::measure_adapter(const std::filesystem::path& /*path*/) const {
  return serves_no_adapters();
}

absl::StatusOr<std::shared_ptr<const LoraAdapter>> Transformer::load_adapter(
    const std::filesystem::path& /*path*/) const {
  return serves_no_adapters();
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::load(const std::filesystem::path& model,
                                                               const TransformerOptions& options,
                                                               const Backend& backend,
                                                               Stream /*stream*/) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig whole, read_model_config(model));
  TESSERA_RETURN_IF_ERROR(check_options(options, whole));
  TESSERA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(model));
  return load_transformer(whole, checkpoint, options, backend);
}

absl::StatusOr<std::unique_ptr<Transformer>> load_transformer(const ModelConfig& whole,
                                                              const Checkpoint& checkpoint,
                                                              const TransformerOptions& options,
                                                              const Backend& backend) {
  TESSERA_RETURN_IF_ERROR(check_options(options, whole));
  const Shard shard = shard_of(options);
  TESSERA_RETURN_IF_ERROR(check_divides(whole, shard.ranks));
  TESSERA_RETURN_IF_ERROR(check_experts(whole, backend));
  const ModelConfig config = shard_config(whole, shard.ranks);
  TESSERA_ASSIGN_OR_RETURN(KeyFrames key_frames, KeyFrames::create(whole, shard, checkpoint,
                                                                   backend, options.load.threads));
  TESSERA_ASSIGN_OR_RETURN(Weights weights, Weights::load(whole, shard, checkpoint, options.weights,
                                                          backend, options.load));
  TESSERA_ASSIGN_OR_RETURN(
      Workspace workspace,
      Workspace::create(config, options.limits, options.max_logits_rows, backend));
  return std::unique_ptr<Transformer>(new Decoder(whole, options, backend, std::move(weights),
                                                  std::move(key_frames), std::move(workspace)));
}

}  // namespace tessera
