#include "server/dialect/prompt_fields.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string>

#include "base/status_macros.h"

namespace tessera {

namespace {

using nlohmann::json;

// Reads one prompt of a list, or the only one: a string, or a list of token ids.
absl::Status read_prompt(const json& value, const std::string& name, Prompt& out) {
  if (value.is_string()) {
    out.emplace<std::string>(value.get_ref<const std::string&>());
    return absl::OkStatus();
  }
  if (!value.is_array() || value.empty()) {
    return invalid_field(name, fmt::format("{} must be a string or a list of token ids, not {}",
                                           name, excerpt(value)));
  }
  auto& ids = out.emplace<std::vector<int32_t>>();
  ids.reserve(value.size());
  for (const json& item : value) {
    const std::optional<int64_t> id = exact_integer(item);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return invalid_field(name, fmt::format("{} must be a list of token ids; item {} is {}", name,
                                             ids.size(), excerpt(item)));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status read_prompts(BodyFields& fields, std::string_view name, std::vector<Prompt>& out) {
  const json* value = fields.find(name);
  if (value == nullptr) {
    return invalid_field(name, fmt::format("{} is missing", name));
  }
  const bool several = value->is_array() && !value->empty() &&
                       (value->front().is_string() || value->front().is_array());
  if (!several) {
    return read_prompt(*value, std::string(name), out.emplace_back());
  }
  out.reserve(value->size());
  for (std::size_t i = 0; i < value->size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        read_prompt((*value)[i], fmt::format("{}[{}]", name, i), out.emplace_back()));
  }
  return absl::OkStatus();
}

}  // namespace tessera
