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
  std::string model;               // empty: the one that is served
  std::vector<Prompt> prompts;     // a chat is one
  GenerateRequest each;            // everything but the prompt
  int32_t n = 1;                   // choices of each prompt
  int32_t best_of = 1;             // >= n: the n likeliest of so many sequences are the choices
  bool echo = false;               // a choice begins with its prompt
  bool token_ids_as_text = false;  // tokens are shown as "token_id:17", also where texts are alike
  std::optional<int32_t> prompt_logprobs;  // reported apart from the choices' own, as vLLM does
  std::string request_id;                  // the client's; empty: ours
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // and one in every chunk

  // How many of the likeliest tokens are shown beside each; none: no log probabilities are.
  std::optional<int32_t> logprobs;
};

// vLLM's names (prompt or messages, add_special_tokens), and llama-server's (content, add_special).
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

// Parse and check a body. A field that is not known, or that asks for what we do not have, is
// refused: nothing is ignored but what asks for nothing (see unsupported.h).
// Errors: InvalidArgument with the field's name (error.h).
absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body);
absl::StatusOr<CompletionRequest> parse_chat_request(std::string_view body);
absl::StatusOr<TokenizeRequest> parse_tokenize_request(std::string_view body);
absl::StatusOr<DetokenizeRequest> parse_detokenize_request(std::string_view body);

}  // namespace tessera
