#pragma once

#include <string_view>

#include "eval/lab/method.h"

namespace tessera::lab {

// Returns: a model that knows the golden prompt's beginnings, its RoPE, and the weights of keys and
// values, and computes nothing.
Model& golden_model();

// Returns: the cache after a prompt of the golden prompt's first tokens, to which the others are
// added one by one, as generated tokens.
Cache continue_golden_prompt(Method& method, int32_t prompt_tokens);

// Expects the rows and the bytes that an oracle has for a method: NAME.json holds cases, as
// row_parts.py writes them.
void expect_rows_as_golden(std::string_view name);

}  // namespace tessera::lab
