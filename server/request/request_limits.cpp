#include "server/request/request_limits.h"

#include <fmt/format.h>

#include "server/request/generate_request.h"

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

std::optional<LongField> long_field(const GenerateRequest& options) {
  if (options.stop_ids.size() > kMaxStopIds) {
    return LongField{"stop_token_ids", fmt::format("has {} ids, at most {} are allowed",
                                                   options.stop_ids.size(), kMaxStopIds)};
  }
  if (options.sampling.logit_bias.size() > kMaxBiases) {
    return LongField{"logit_bias", fmt::format("has {} tokens, at most {} are allowed",
                                               options.sampling.logit_bias.size(), kMaxBiases)};
  }
  if (options.sampling.allowed_token_ids.size() > kMaxAllowedIds) {
    return LongField{"allowed_token_ids",
                     fmt::format("has {} ids, at most {} are allowed",
                                 options.sampling.allowed_token_ids.size(), kMaxAllowedIds)};
  }
  if (const auto error = stop_error(options.bad_texts, kBadWordLimits)) {
    return LongField{"bad_words", *error};
  }
  if (const auto error =
          options.breakers ? stop_error(*options.breakers, kBreakerLimits) : std::nullopt) {
    return LongField{"dry_sequence_breakers", *error};
  }
  if (options.cache_salt.size() > kMaxSalt) {
    return LongField{"cache_salt", fmt::format("has {} bytes, at most {} are allowed",
                                               options.cache_salt.size(), kMaxSalt)};
  }
  return std::nullopt;
}

}  // namespace tessera
