#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/checkpoint/checkpoint.h"
#include "models/config/model_config.h"
#include "models/transformer.h"

namespace tessera {

// Transformer::load for a model whose config was read and whose checkpoint is open. Neither is
// needed afterwards.
absl::StatusOr<std::unique_ptr<Transformer>> load_transformer(const ModelConfig& whole,
                                                              const Checkpoint& checkpoint,
                                                              const TransformerOptions& options,
                                                              const Backend& backend);

}  // namespace tessera
