#include "eval/run/model_host.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "eval/run/engine_subject.h"
#include "eval/run/forked_prompts.h"
#include "eval/tasks/prompt_text.h"
#include "models/checkpoint/read_model_config.h"
#include "models/shared_transformer.h"

namespace tessera {
namespace {

constexpr int32_t kStepTokens = 512;

}  // namespace

ModelHost::ModelHost(const ModelHostOptions& options, const Backend& backend, Stream device_stream)
    : options_(options),
      backend_(backend),
      pool_(std::make_unique<ThreadPool>(options.threads)),
      stream_(backend.memory != nullptr ? device_stream : pool_->stream()) {}

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::load(const ModelHostOptions& options,
                                                           const Backend& backend,
                                                           Stream device_stream) {
  std::unique_ptr<ModelHost> host(new ModelHost(options, backend, device_stream));
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(options.model));
  if (host->options_.context == 0) {
    host->options_.context = config.context;
  }
  const TransformerOptions transformer{
      .weights = options.weights,
      .limits = {.tokens = std::max(kStepTokens, options.batch),
                 .sequences = options.batch,
                 .context = host->options_.context + host->options_.replay,
                 .selects = true},
      .load = {.threads = host->pool_->threads()}};
  TESSERA_ASSIGN_OR_RETURN(host->transformer_,
                           Transformer::load(options.model, transformer, backend, host->stream_));
  return host;
}

absl::StatusOr<std::unique_ptr<Subject>> ModelHost::subject(const EvalPreset& preset,
                                                            const Tokenizer& tokenizer) const {
  EngineOptions options;
  options.max_step_tokens = std::max(kStepTokens, options_.batch);
  options.max_sequences = options_.batch;
  options.context = options_.context + (preset.policy.replays() ? options_.replay : 0);
  options.kv = {"evaluated", preset.policy};
  options.kv_coded_residuals = options_.coded_residuals && stores_codes(preset.policy);
  options.kv_head_profiles = preset.head_profiles.value_or(config().head_profiles);
  options.prefix_cache = false;  // policies skip shared blocks; here they must act on all
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::create(options, share_transformer(transformer_), backend_, stream_);
  if (!engine.ok()) {
    return absl::Status(
        engine.status().code(),
        absl::StrCat("preset ", preset.name, ": ", std::string(engine.status().message())));
  }
  const auto decode = [&tokenizer](const std::vector<int32_t>& ids) {
    return decode_continuation(tokenizer, ids);
  };
  return make_forking_subject(make_engine_subject(preset.name, *std::move(engine), decode),
                              {.policy = preset.policy,
                               .coded_residuals = options.kv_coded_residuals,
                               .head_profiles = *options.kv_head_profiles,
                               .model = transformer_,
                               .step_tokens = options.max_step_tokens,
                               .branches = options_.batch,
                               .context = options.context,
                               .backend = backend_,
                               .stream = stream_});
}

std::string ModelHost::device() const {
  return absl::StrCat(backend_.name, " (", backend_.isa, "), ", pool_->threads(), " threads");
}

}  // namespace tessera
