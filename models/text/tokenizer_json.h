#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/text/tokenizer.h"
#include "models/text/tokenizer_config.h"
#include "nlohmann/json.hpp"

namespace tessera {

// A Hugging Face `tokenizer.json` with a BPE model, byte-level (GPT-2, Llama 3) or in
// sentencepiece's manner (Llama 2, Mistral). "truncation" and "padding" are not for us, as
// transformers ignores them too. Errors: InvalidArgument for what is malformed or contradicts
// itself, Unimplemented with the name of each part that we do not run.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_json_tokenizer(const nlohmann::json& file,
                                                               const TokenizerConfig& config);

}  // namespace tessera
