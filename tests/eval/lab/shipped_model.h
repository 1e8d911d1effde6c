#pragma once

#include <string_view>

#include "eval/lab/model.h"

namespace tessera::lab {

// The shipped checkpoint, with itself as its draft, and with a tokenizer that makes each byte of a
// text a token. The oracles compute it with transformers, or with plain matrices.
Model& shipped_model();

// Expects what the oracle of a method computed, for all numbers in its golden file: {"numbers": {
// "prompt": tokens, "kept": [layers][kv_heads][positions] after the prompt, if it is there, and
// "logits": packed rows of the first 64 after the prompt and after each later token}}.
void expect_sequence_as_golden(std::string_view name);

}  // namespace tessera::lab
