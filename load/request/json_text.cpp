#include "load/request/json_text.h"

namespace tessera::load {

nlohmann::json parse_json(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, false);
}

std::string print_json(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string print_lines(const nlohmann::ordered_json& value) {
  return value.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::load
