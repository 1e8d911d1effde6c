#include "server/openai/ordered_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/status_macros.h"
#include "server/openai/body_fields.h"

namespace tessera {

absl::StatusOr<nlohmann::ordered_json> ordered_members(std::string_view body,
                                                       std::span<const std::string_view> names) {
  using Json = nlohmann::ordered_json;
  std::vector<int> keys;  // of each object that is open
  std::string member;     // of the body
  std::string too_many;
  const auto keeps = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (!too_many.empty()) {  // the library's time for a dropped key grows with the keys before it
      return false;
    }
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.push_back(0);
        return true;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        return true;
      case Json::parse_event_t::key:
        if (depth == 1) {
          member = parsed.get<std::string>();
          return std::find(names.begin(), names.end(), member) != names.end();
        }
        if (++keys.back() > kMaxOrderedKeys) {
          too_many = member;
          return false;
        }
        return true;
      default:
        return true;
    }
  };
  Json members = Json::parse(body, keeps, /*allow_exceptions=*/false);
  if (!too_many.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} has an object of more than {} keys", too_many, kMaxOrderedKeys));
  }
  return members;
}

absl::StatusOr<nlohmann::ordered_json> parse_ordered(std::string_view text) {
  constexpr std::string_view kValue[] = {"value"};
  const std::string wrapped = fmt::format("{{\"value\":{}}}", text);
  TESSERA_RETURN_IF_ERROR(parse_body(wrapped).status());
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::ordered_json members, ordered_members(wrapped, kValue));
  return members.at("value");
}

}  // namespace tessera
