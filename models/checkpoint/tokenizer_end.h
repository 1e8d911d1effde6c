#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "absl/status/statusor.h"

namespace tessera {

// Returns: the token that ends a text by tokenizer_config.json of a Hugging Face directory.
// Checkpoints that were trained further for chats may name it there only. Nullopt if the file names
// none, or a token that neither it nor added_tokens.json gives an id below `vocab`.
// Errors: InvalidArgument for a file that is not a JSON object.
absl::StatusOr<std::optional<int32_t>> tokenizer_end_token(const std::filesystem::path& directory,
                                                           int32_t vocab);

}  // namespace tessera
