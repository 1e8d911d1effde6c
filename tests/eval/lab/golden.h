#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

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

// Returns: the positions that are kept, [layers][kv_heads].
std::vector<std::vector<std::vector<int32_t>>> kept_positions(const Cache& cache);

// Expects that a method keeps the positions that its oracle keeps, for all numbers in the golden
// file NAME.json: {"numbers": [layers][kv_heads][positions]}.
void expect_kept_as_golden(std::string_view name);

}  // namespace tessera::lab
