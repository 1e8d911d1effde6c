#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/added_token.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What lies beside a vocabulary in a Hugging Face directory: tokenizer_config.json, and the older
// special_tokens_map.json and added_tokens.json. Each file may be missing.
struct TokenizerConfig {
  // A token that a role is given to. Not stated: the vocabulary decides. Stated without text: null.
  struct Role {
    bool stated = false;
    std::optional<std::string> text;
  };

  std::optional<bool> add_bos_token;
  std::optional<bool> add_prefix_space;
  std::optional<bool> legacy;
  Role bos_token;
  Role eos_token;
  std::vector<AddedToken> added_tokens;           // by id
  std::unordered_set<std::string> special_texts;  // of every token with a role

  // Errors name the file and the field.
  static absl::StatusOr<TokenizerConfig> load(const std::filesystem::path& directory);
};

// One object of "added_tokens" (tokenizer.json) or "added_tokens_decoder", without its id.
absl::StatusOr<AddedToken> parse_added_token(const nlohmann::json& object, int32_t id);

}  // namespace tessera
