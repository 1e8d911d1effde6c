#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "text/bpe_lists.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tessera {

// Returns: the tokenizer of a Hugging Face `tokenizer.json` with a BPE model, either byte-level
// (GPT-2, Llama 3) or in sentencepiece style (Llama 2, Mistral). Ignores "truncation" and
// "padding", as transformers does.
// Errors: InvalidArgument for a malformed or inconsistent file; Unimplemented with the name of the
// unsupported part.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_json_tokenizer(const nlohmann::json& file,
                                                               const TokenizerConfig& config);

// The same with the lists of another file; `file` has none. A token may be there once.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(const nlohmann::json& file,
                                                              BpeLists lists,
                                                              const TokenizerConfig& config);

}  // namespace tessera
