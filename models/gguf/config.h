#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "models/config.h"
#include "models/gguf/model.h"

namespace tessera {

// Reads and checks the model's configuration in the metadata, and RoPE's factors in tensors
// (models/gguf/rope.h). A file without the tensor output.weight has a tied head, and one without
// attn_q.bias no biases of attention.
// Errors: InvalidArgument (a key that is missing, out of range or inconsistent), Unimplemented (an
// architecture or setting that is not supported); each names the file and the key.
absl::StatusOr<ModelConfig> read_gguf_config(const GgufModel& model);

}  // namespace tessera
