#pragma once

#include "absl/status/status.h"
#include "files/gguf/gguf_model.h"
#include "files/json_fields.h"
#include "models/architectures/architecture.h"
#include "models/config/model_config.h"

namespace tessera {

// Reads the keys "NAME.rope.*" of an architecture and the tensors of RoPE's factors into
// rope_theta, rotary_dim and rope_scaling. A file with the tensors rope_factors_long.weight and
// rope_factors_short.weight has longrope, with or without a key that says so.
// Requires: config.head_dim and config.context are read. `fields` are those of `model`.
// Errors: InvalidArgument, Unimplemented; both name the file, and the key or tensor.
absl::Status read_gguf_rope(const GgufModel& model, const Architecture& architecture,
                            JsonFields& fields, ModelConfig& config);

}  // namespace tessera
