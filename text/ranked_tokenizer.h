#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tessera {

// Tokenizers whose file is a list of ranked byte strings (text/ranked_encoder.h).

// Returns: true for the text form of tiktoken, a base64 string and a rank in each line. Meta's
// tokenizer.model of Llama 3 has it; other files of that name are sentencepiece models.
bool is_tiktoken_model(std::string_view bytes);

// Returns: the tokenizer of such a file, with Llama 3's pattern. Its special tokens follow the last
// rank. They are those of tokenizer_config.json, or else those of Llama 3.1.
// Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_tiktoken_tokenizer(std::string_view bytes,
                                                                   const TokenizerConfig& config);

// Returns: the tokenizer of a tekken.json, Mistral's own file. Special tokens have the first ids.
// Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_tekken_tokenizer(const nlohmann::json& file);

}  // namespace tessera
