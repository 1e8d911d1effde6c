#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera {

// Prints an answer. Text is valid UTF-8, except for single tokens, which may be parts of
// characters: these bytes become U+FFFD.
inline std::string print_json(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Returns: seconds of the Unix epoch, as answers name times.
inline int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace tessera
