#include "models/checkpoint/tokenizer_end.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/json_fields.h"
#include "files/mapped_file.h"

namespace tessera {
namespace {

using nlohmann::json;

// Returns: the object of a file; an empty one without the file.
absl::StatusOr<json> read_object(const std::filesystem::path& file) {
  const absl::StatusOr<std::string> text = read_small_file(file);
  if (absl::IsNotFound(text.status())) return json::object();
  TESSERA_RETURN_IF_ERROR(text.status());
  TESSERA_ASSIGN_OR_RETURN(json object, parse_strict_json(*text, file.string()));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file.string(), ": is not a JSON object"));
  }
  return object;
}

// Returns: the text of a token, which is a string or an object with "content"; empty for others.
std::string text_of(const json& token) {
  const json text = token.is_object() ? token.value("content", json()) : token;
  return text.is_string() ? text.get<std::string>() : std::string();
}

}  // namespace

absl::StatusOr<std::optional<int32_t>> tokenizer_end_token(const std::filesystem::path& directory,
                                                           int32_t vocab) {
  TESSERA_ASSIGN_OR_RETURN(const json config, read_object(directory / "tokenizer_config.json"));
  const std::string end = text_of(config.value("eos_token", json()));
  if (end.empty()) return std::nullopt;
  std::optional<int32_t> found;
  const json tokens = config.value("added_tokens_decoder", json());
  if (tokens.is_object()) {
    for (const auto& [key, token] : tokens.items()) {
      int32_t id = 0;
      if (text_of(token) == end && absl::SimpleAtoi(key, &id)) found = id;
    }
  }
  if (!found) {
    TESSERA_ASSIGN_OR_RETURN(const json added, read_object(directory / "added_tokens.json"));
    const json id = added.value(end, json());
    if (id.is_number_integer() && id >= 0 && id < vocab) found = id.get<int32_t>();
  }
  return found && *found >= 0 && *found < vocab ? found : std::nullopt;
}

}  // namespace tessera
