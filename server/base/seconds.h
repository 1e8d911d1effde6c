#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"

namespace tessera {

inline constexpr int32_t kMostSeconds = 86'400;

// Returns: a client's time in seconds, such as "2.5"; none unless it is above 0 and at most
// kMostSeconds.
inline std::optional<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  double seconds = 0;
  if (!absl::SimpleAtod(std::string(text), &seconds) || !(seconds > 0) || seconds > kMostSeconds) {
    return std::nullopt;
  }
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

}  // namespace tessera
