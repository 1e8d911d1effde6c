#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request_options.h"

namespace tessera {

// Limits of both front ends that the engine does not know.

inline constexpr int64_t kRandomSeed = -1;                // as none, in vLLM and llama-server
inline constexpr OptionRange kSampleCount{1, 128};        // n and best_of; 128 as OpenAI
inline constexpr OptionRange kTruncatedPrompt{1};         // truncate_prompt_tokens
inline constexpr OptionRange kPinSeconds{1, 86'400};      // Cache::ttl, at most a day
inline constexpr OptionRange kBias{-100, 100};            // logit_bias over HTTP, as OpenAI
inline constexpr std::size_t kMaxModelName = 256;         // bytes; each event repeats it
inline constexpr std::size_t kMaxStopIds = 1024;          // stop_token_ids
inline constexpr std::size_t kMaxAllowedIds = 4096;       // allowed_token_ids
inline constexpr std::size_t kMaxBiases = 1024;           // logit_bias; as vLLM
inline constexpr std::size_t kMaxSalt = 256;              // bytes of cache_salt
inline constexpr std::size_t kMaxTools = 512;             // of a chat
inline constexpr std::size_t kMaxEmbeddingInputs = 2048;  // as OpenAI
inline constexpr std::size_t kMaxVariables = 64;          // of a chat's template

struct StopLimits {
  std::size_t strings;
  std::size_t bytes;  // of each string
};
inline constexpr StopLimits kStopLimits{64, 1024};
inline constexpr StopLimits kBadWordLimits{256, 256};
inline constexpr StopLimits kBreakerLimits{32, 40};

// A field that is too long, and by how much, to be printed after its name.
struct LongField {
  std::string_view name;
  std::string error;
};

struct GenerateRequest;

// Returns: the first of stop_token_ids, logit_bias, allowed_token_ids, cache_salt, bad_words and
// dry_sequence_breakers that is longer than allowed.
std::optional<LongField> long_field(const GenerateRequest& request);

// Returns: the error of stop strings, to be printed after the field's name; none if they are within
// the limits and none is empty.
std::optional<std::string> stop_error(const std::vector<std::string>& stops, StopLimits limits);

}  // namespace tessera
