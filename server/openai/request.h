#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/service.h"

namespace tessera {

// A request of /v1/completions or /v1/chat/completions.
struct CompletionRequest {
  bool chat = false;
  std::string model;            // empty: the one that is served
  std::vector<Prompt> prompts;  // a chat is one
  GenerateRequest each;         // everything but the prompt
  std::optional<uint64_t> seed;
  int32_t n = 1;  // choices of each prompt
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // and one in every chunk

  // Whether token texts with log probabilities are wanted; how many is in the sampling parameters.
  bool logprobs() const { return each.sampling.top_logprobs.has_value(); }
};

struct TokenizeRequest {
  std::string model;
  Prompt prompt;
  PromptOptions options;
  bool token_texts = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// Parse and check a body. Fields nobody knows are ignored, as OpenAI and vLLM do; fields that mean
// something we do not have are refused. Errors: InvalidArgument with the field's name (error.h).
absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body);
absl::StatusOr<CompletionRequest> parse_chat_request(std::string_view body);
absl::StatusOr<TokenizeRequest> parse_tokenize_request(std::string_view body);
absl::StatusOr<DetokenizeRequest> parse_detokenize_request(std::string_view body);

}  // namespace tessera
