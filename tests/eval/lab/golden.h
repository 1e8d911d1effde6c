#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "eval/lab/method.h"

namespace tessera::lab {

// Returns: tests/golden/lab/NAME.json, as golden_prompt.py wrote it.
nlohmann::json golden(std::string_view name);

// Returns: the prompt of a tiny random Llama, computed by transformers.
const Prompt& golden_prompt();

// Returns: the rows of a golden matrix, packed as golden_prompt.py packs them.
Rows unpack(const nlohmann::json& packed, int64_t cols);

// Returns: the method of that name and numbers, such as "snapkv:budget=0.25".
// Requires: it is in the table, and knows the numbers.
std::unique_ptr<Method> make_method(const std::string& name, const Shape& shape);

// Returns: the cache that a method fills from the golden prompt.
Cache fill_from_golden_prompt(Method& method);

// Returns: the first tokens of the golden prompt.
Prompt golden_beginning(int32_t tokens);

// A model that knows the golden prompt, the RoPE of its Llama and its weights of keys and values,
// and computes nothing: compute() shows what full attention made. For methods that need rotate(),
// project(), or a handler of layers.
Model& golden_model();

// Returns: the cache that a method fills from the golden prompt's first tokens, with a model.
Cache compute_from_golden_model(Method& method, int32_t tokens);

// Reads the golden prompt's tokens from cache.tokens to its end, as if they were generated with
// the queries, keys and values that they have with full attention.
// Returns: the positions that each query head read, [tokens][layers][heads].
std::vector<std::vector<std::vector<std::vector<int32_t>>>> read_golden_tokens(Method& method,
                                                                               Cache& cache);

// Returns: the positions that are kept, [layers][kv_heads].
std::vector<std::vector<std::vector<int32_t>>> kept_positions(const Cache& cache);

// Expects that a method keeps the positions that its oracle keeps, for all its numbers:
// {"numbers": [layers][kv_heads][positions]}. By default they are the golden file NAME.json.
void expect_kept(const nlohmann::json& expected, std::string_view name);
void expect_kept_as_golden(std::string_view name);

// Likewise of the prompt's first 64 tokens, and after the others have been read:
// {"numbers": {"prompt": [layers][kv_heads][positions], "later": likewise}}.
void expect_kept_later(const nlohmann::json& expected, std::string_view name);
void expect_kept_while_generating(std::string_view name);

}  // namespace tessera::lab
