#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "text/added_token.h"

namespace tessera {

// Tokenizer settings of a Hugging Face directory outside of the vocabulary: tokenizer_config.json,
// and the older special_tokens_map.json and added_tokens.json. Each file may be missing.
struct TokenizerConfig {
  // The token of a role such as BOS. Not stated: the vocabulary decides. Stated without text: the
  // file has null, i.e. there is no such token.
  struct Role {
    bool stated = false;
    std::optional<std::string> text;
  };

  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;
  std::optional<bool> legacy;
  Role bos_token;
  Role eos_token;
  std::vector<AddedToken> added_tokens;           // sorted by id
  std::unordered_set<std::string> special_texts;  // of every token with a role

  // Errors: InvalidArgument for a malformed file, which names file and field; NotFound if a file
  // exists but cannot be read.
  static absl::StatusOr<TokenizerConfig> load(const std::filesystem::path& directory);
};

// Parses one object of "added_tokens" (tokenizer.json) or "added_tokens_decoder", except its id.
// Errors: InvalidArgument.
absl::StatusOr<AddedToken> parse_added_token(const nlohmann::json& object, int32_t id);

}  // namespace tessera
