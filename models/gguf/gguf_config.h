#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "files/gguf/gguf_model.h"
#include "models/config/model_config.h"

namespace tessera {

// Reads and checks the model's configuration in the metadata, and RoPE's factors in tensors
// (models/gguf/gguf_rope.h). A file without the tensor output.weight has a tied head, and one
// without attn_q.bias no biases of attention.
// Errors: InvalidArgument (a key that is missing, out of range or inconsistent), Unimplemented (an
// architecture or setting that is not supported); each names the file and the key.
absl::StatusOr<ModelConfig> read_gguf_config(const GgufModel& model);

}  // namespace tessera
