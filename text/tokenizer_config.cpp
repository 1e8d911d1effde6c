#include "text/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "text/json_file.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                  "sep_token", "cls_token", "mask_token"};

// Parses a token that is a string or an object with "content".
absl::StatusOr<std::string> token_text(const json& value, const std::string& field) {
  const json& text = value.is_object() ? json_member(value, "content") : value;
  if (!text.is_string()) return absl::InvalidArgumentError("\"" + field + "\" names no token");
  return text.get<std::string>();
}

absl::Status read_roles(const json& file, TokenizerConfig& config) {
  for (const char* name : kRoles) {
    if (!file.contains(name)) continue;
    TokenizerConfig::Role role{true, std::nullopt};
    const json& value = json_member(file, name);
    if (!value.is_null()) {
      TESSERA_ASSIGN_OR_RETURN(role.text, token_text(value, name));
      config.special_texts.insert(*role.text);
    }
    const std::string_view role_name = name;
    if (role_name == "bos_token" && !config.bos_token.stated) config.bos_token = role;
    if (role_name == "eos_token" && !config.eos_token.stated) config.eos_token = role;
  }
  const json& additional = json_member(file, "additional_special_tokens");
  if (additional.is_null()) return absl::OkStatus();
  if (!additional.is_array()) {
    return absl::InvalidArgumentError("\"additional_special_tokens\" is not a list");
  }
  for (const json& value : additional) {
    TESSERA_ASSIGN_OR_RETURN(std::string text, token_text(value, "additional_special_tokens"));
    config.special_texts.insert(std::move(text));
  }
  return absl::OkStatus();
}

absl::Status read_added_decoder(const json& file, TokenizerConfig& config) {
  const json& decoder = json_member(file, "added_tokens_decoder");
  if (decoder.is_null()) return absl::OkStatus();
  if (!decoder.is_object()) {
    return absl::InvalidArgumentError("\"added_tokens_decoder\" is not an object");
  }
  for (const auto& [key, value] : decoder.items()) {
    int32_t number = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc() || end != key.data() + key.size()) {
      return absl::InvalidArgumentError("\"added_tokens_decoder\" has \"" + key +
                                        "\" where an id is due");
    }
    TESSERA_ASSIGN_OR_RETURN(const int32_t id, json_token_id(number, "added token " + key));
    TESSERA_ASSIGN_OR_RETURN(AddedToken token, parse_added_token(value, id));
    config.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status read_config(const json& file, TokenizerConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(config.add_bos_token, json_bool(file, "add_bos_token"));
  TESSERA_ASSIGN_OR_RETURN(config.add_eos_token, json_bool(file, "add_eos_token"));
  TESSERA_ASSIGN_OR_RETURN(config.add_prefix_space, json_bool(file, "add_prefix_space"));
  TESSERA_ASSIGN_OR_RETURN(config.legacy, json_bool(file, "legacy"));
  TESSERA_RETURN_IF_ERROR(read_roles(file, config));
  return read_added_decoder(file, config);
}

absl::Status read_added_map(const json& file, TokenizerConfig& config) {
  for (const auto& [content, value] : file.items()) {
    TESSERA_ASSIGN_OR_RETURN(const int32_t id, json_token_id(value, "\"" + content + "\""));
    const bool known = std::any_of(config.added_tokens.begin(), config.added_tokens.end(),
                                   [id = id](const AddedToken& token) { return token.id == id; });
    if (known) continue;
    AddedToken token;
    token.id = id;
    token.content = content;
    config.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

using Reader = absl::Status (*)(const json&, TokenizerConfig&);

absl::Status read_if_there(const std::filesystem::path& path, Reader read,
                           TokenizerConfig& config) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const json file, read_json_object(path));
  const absl::Status status = read(file, config);
  if (status.ok()) return status;
  return absl::Status(status.code(), path.string() + ": " + std::string(status.message()));
}

}  // namespace

absl::StatusOr<AddedToken> parse_added_token(const json& object, int32_t id) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> content,
                           json_string(object, "content"));
  if (!content) {
    return absl::InvalidArgumentError("added token " + std::to_string(id) + " has no \"content\"");
  }
  AddedToken token;
  token.id = id;
  token.content = *content;
  const std::pair<const char*, bool*> flags[] = {{"special", &token.special},
                                                 {"single_word", &token.single_word},
                                                 {"lstrip", &token.lstrip},
                                                 {"rstrip", &token.rstrip}};
  for (const auto& [name, flag] : flags) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<bool> value, json_bool(object, name));
    *flag = value.value_or(false);
  }
  return token;
}

absl::StatusOr<TokenizerConfig> TokenizerConfig::load(const std::filesystem::path& directory) {
  TokenizerConfig config;
  TESSERA_RETURN_IF_ERROR(read_if_there(directory / "tokenizer_config.json", read_config, config));
  TESSERA_RETURN_IF_ERROR(read_if_there(directory / "special_tokens_map.json", read_roles, config));
  TESSERA_RETURN_IF_ERROR(read_if_there(directory / "added_tokens.json", read_added_map, config));
  for (AddedToken& token : config.added_tokens) {
    token.special = token.special || config.special_texts.count(token.content) != 0;
  }
  std::sort(config.added_tokens.begin(), config.added_tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return config;
}

}  // namespace tessera
