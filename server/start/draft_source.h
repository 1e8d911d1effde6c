#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/start_bytes.h"
#include "kernels/backend.h"
#include "models/checkpoint/checkpoint.h"
#include "models/config/model_config.h"
#include "models/transformer.h"
#include "server/settings/settings.h"
#include "text/tokenizer.h"

namespace tessera {

// The model of --draft-model, which drafts tokens for the served one (engine/draft_model.h). It is
// opened before the sizes of a start are chosen, because it takes a part of the memory.
class DraftSource {
 public:
  // Returns: none without a draft model.
  // Errors: those of its files.
  static absl::StatusOr<std::optional<DraftSource>> open(const Settings& settings,
                                                         const Backend& backend);

  // Adds its bytes to those of a start.
  // Requires: this outlives `model`.
  void add_to(StartModel& model) const;

  // Returns: OK if both models give each id the same text.
  // Errors: InvalidArgument names the first id that differs; those of its tokenizer's files.
  absl::Status check_vocabulary(const Tokenizer& served) const;

  // Returns: the model, with the weights in the format of the settings.
  // Errors: those of Transformer::load.
  absl::StatusOr<std::unique_ptr<Transformer>> load(const EngineOptions& options,
                                                    const Backend& backend, int threads) const;

 private:
  DraftSource(const Settings& settings, ModelConfig config, Checkpoint checkpoint);

  std::filesystem::path path_;
  std::optional<WeightFormat> weights_;
  ModelConfig config_;
  Checkpoint checkpoint_;
  int64_t weight_bytes_ = 0;
};

}  // namespace tessera
