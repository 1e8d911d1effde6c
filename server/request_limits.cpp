#include "server/request_limits.h"

#include <fmt/format.h>

namespace tessera {

std::optional<std::string> stop_error(const std::vector<std::string>& stops, StopLimits limits) {
  if (stops.size() > limits.strings) {
    return fmt::format("has {} strings, at most {}", stops.size(), limits.strings);
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) {
      return "must not contain an empty string";
    }
    if (stop.size() > limits.bytes) {
      return fmt::format("has a string of {} bytes, at most {}", stop.size(), limits.bytes);
    }
  }
  return std::nullopt;
}

}  // namespace tessera
