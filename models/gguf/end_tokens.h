#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "files/gguf/gguf_model.h"

namespace tessera {

// Returns: the ids that end a generation, in ascending order. These are the metadata's ends of
// text, turn and message, and the control tokens with a well-known name such as "<|im_end|>".
// Many files state only one of the ends that their model writes.
// Errors: InvalidArgument for an id that is not below `vocab`, or for a malformed token list.
absl::StatusOr<std::vector<int32_t>> gguf_end_tokens(const GgufModel& model, int32_t vocab);

}  // namespace tessera
