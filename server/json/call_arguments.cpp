#include "server/json/call_arguments.h"

#include "server/json/raw_json.h"

namespace tessera {

std::optional<std::string> call_arguments(const nlohmann::json& value,
                                          const std::function<std::string_view()>& raw) {
  if (value.is_null() || value.empty() || value == "") {
    return "{}";
  }
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_structured()) {
    return spaced_json(raw());
  }
  return std::nullopt;
}

}  // namespace tessera
