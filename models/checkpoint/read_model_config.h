#pragma once

#include <filesystem>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/config/model_config.h"

namespace tessera {

// Reads and checks a model's configuration. An empty generation_config_json counts as a missing
// file, which is allowed.
// Errors: NotFound (no config.json); InvalidArgument (not JSON, or a field that is missing, out of
// range or inconsistent; the message names it); Unimplemented (an architecture, activation or RoPE
// scaling that is not supported; the message names it and the supported ones).
absl::StatusOr<ModelConfig> parse_model_config(std::string_view config_json,
                                               std::string_view generation_config_json);

// The same of a Hugging Face directory, with the end of text that its tokenizer_config.json names
// (models/checkpoint/tokenizer_end.h), of a GGUF file, or a directory with one
// (files/gguf/gguf_model.h), with the profile beside it (models/checkpoint/head_profile_file.h).
// Errors: also those of find_gguf, GgufModel::open and read_head_profiles; errors of metadata name
// file and key.
absl::StatusOr<ModelConfig> read_model_config(const std::filesystem::path& model);

}  // namespace tessera
