#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/request_options.h"

namespace tessera {

// Limits of both front ends that the engine does not know.

inline constexpr OptionRange kSampleCount{1, 128};    // n and best_of; 128 as OpenAI
inline constexpr OptionRange kPinSeconds{1, 86'400};  // Cache::ttl, at most a day
inline constexpr OptionRange kBias{-100, 100};        // logit_bias over HTTP, as OpenAI
inline constexpr std::size_t kMaxRequestId = 128;     // bytes

struct StopLimits {
  std::size_t strings;
  std::size_t bytes;  // of each string
};
inline constexpr StopLimits kHttpStops{64, 1024};
// The number that the proto promises. A message's own limit bounds the bytes (--grpc-max-message).
inline constexpr StopLimits kGrpcStops{16, static_cast<std::size_t>(-1)};

// Returns: the error of stop strings, to be printed after the field's name; none if they are within
// the limits and none is empty.
std::optional<std::string> stop_error(const std::vector<std::string>& stops, StopLimits limits);

}  // namespace tessera
