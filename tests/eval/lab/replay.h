#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "eval/lab/method.h"

namespace tessera::lab {

// What a method did while a part of the golden prompt was read token by token, with the queries,
// keys and values that transformers computed with full attention.
struct Replay {
  // Positions that each query head read, [tokens][layers][heads].
  std::vector<std::vector<std::vector<std::vector<int32_t>>>> read;
  Cache cache;
  int64_t bytes = 0;
};

// Fills a cache with the golden prompt's first tokens, and reads the others one by one.
Replay replay_golden_prompt(Method& method, int32_t filled);

// Expects what the oracle of a method computed, for all numbers in its golden file: {"numbers": {
// "filled": tokens, and any of "read", "kept": [layers][kv_heads][positions], "keys" and "values":
// packed rows of the first heads, "bytes"}}.
void expect_replay_as_golden(std::string_view name);

}  // namespace tessera::lab
