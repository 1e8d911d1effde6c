#include "server/start/draft_source.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/draft_model.h"
#include "engine/kv/kv_shape.h"
#include "models/checkpoint/read_model_config.h"
#include "models/load_transformer.h"
#include "models/weights/weights.h"

namespace tessera {
namespace {

absl::Status with_setting(const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("draft-model: {}", std::string(status.message())));
}

}  // namespace

DraftSource::DraftSource(const Settings& settings, ModelConfig config, Checkpoint checkpoint)
    : path_(settings.draft_model),
      weights_(settings.weights),
      config_(std::move(config)),
      checkpoint_(std::move(checkpoint)) {}

absl::StatusOr<std::optional<DraftSource>> DraftSource::open(const Settings& settings,
                                                             const Backend& backend) {
  if (settings.draft_model.empty()) {
    return std::nullopt;
  }
  absl::StatusOr<ModelConfig> config = read_model_config(settings.draft_model);
  if (!config.ok()) return with_setting(config.status());
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::open(settings.draft_model);
  if (!checkpoint.ok()) return with_setting(checkpoint.status());
  DraftSource source(settings, *std::move(config), *std::move(checkpoint));
  const absl::StatusOr<WeightSize> size =
      Weights::measure(source.config_, {}, source.checkpoint_, settings.weights, backend);
  if (!size.ok()) return with_setting(size.status());
  source.weight_bytes_ = size->bytes;
  return source;
}

void DraftSource::add_to(StartModel& model) const {
  model.draft = &config_;
  model.draft_weight_bytes = weight_bytes_;
}

absl::Status DraftSource::check_vocabulary(const Tokenizer& served) const {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> own = Tokenizer::load(path_);
  if (!own.ok()) return with_setting(own.status());
  const int32_t ids = std::min(served.vocab_size(), (*own)->vocab_size());
  int32_t id = 0;
  while (id < ids && served.token_bytes(id, true) == (*own)->token_bytes(id, true)) ++id;
  if (id == ids && served.vocab_size() == (*own)->vocab_size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("draft-model: {} has another vocabulary than the model: {} and {} tokens, which "
                  "differ from id {} on; a smaller model of the same family has the same",
                  path_.string(), (*own)->vocab_size(), served.vocab_size(), id));
}

absl::StatusOr<std::unique_ptr<Transformer>> DraftSource::load(const EngineOptions& options,
                                                               const Backend& backend,
                                                               int threads) const {
  absl::StatusOr<std::unique_ptr<Transformer>> loaded = load_transformer(
      config_, checkpoint_,
      {.weights = weights_, .limits = DraftModel::limits(options), .load = {.threads = threads}},
      backend);
  if (!loaded.ok()) return with_setting(loaded.status());
  TESSERA_ASSIGN_OR_RETURN(const KvArenaShape kv,
                           shape_of(DraftModel::cache_options(options, config_, backend)));
  spdlog::info("draft model {}: weights {}: {} bytes, workspace {} bytes, KV cache {} bytes",
               path_.string(), (*loaded)->weight_formats(), (*loaded)->weight_bytes(),
               (*loaded)->workspace_bytes(), kv.total_bytes());
  return loaded;
}

}  // namespace tessera
