#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "files/gguf/gguf_model.h"
#include "text/tokenizer.h"

namespace tessera {

// Returns: the tokenizer in the metadata of a GGUF file; tokenizer.ggml.model is its kind. "gpt2"
// is byte-level BPE, which splits text as tokenizer.ggml.pre says (text/gguf_patterns.h).
// "llama" is sentencepiece's BPE with scores. Control tokens are special; user-defined ones are
// matched in any text.
// Errors: InvalidArgument for metadata that is missing or inconsistent; Unimplemented for a kind or
// a `pre` that is not supported; each names the file and the key.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_gguf_tokenizer(const GgufModel& model);

// Returns: the chat template in the metadata; nullopt if there is none. `name`: ".tool_use" for the
// one of that name, empty for the default.
// Errors: InvalidArgument if it is not text.
absl::StatusOr<std::optional<std::string>> gguf_chat_template(const GgufModel& model,
                                                              std::string_view name = {});

}  // namespace tessera
