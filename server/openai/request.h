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
  std::string model;               // empty: the served model
  std::vector<Prompt> prompts;     // a chat is one prompt
  GenerateRequest each;            // all fields but the prompt
  int32_t n = 1;                   // choices of each prompt
  int32_t best_of = 1;             // >= n: sequences of each prompt; the n most likely are returned
  bool echo = false;               // a choice begins with its prompt
  bool token_ids_as_text = false;  // prints tokens as "token_id:17", unique even for equal texts
  bool token_ids = false;          // choices have their token ids, and those of the prompt
  std::optional<int32_t> prompt_logprobs;  // reported separately, as in vLLM
  ToolUse tools{};                         // of a chat
  bool legacy_calls = false;               // the answer has `function_call`, not `tool_calls`
  bool reasoning = true;                   // a chat's answer shows its thoughts
  std::string request_id;                  // from the client; empty: generated
  bool stream = false;
  bool include_usage = false;           // sends a last chunk with the usage
  bool continuous_usage = false;        // reports the usage in every chunk
  std::vector<std::string> warnings{};  // parts of the body that are left out

  // Number of most likely tokens shown for each token; none: no log probabilities.
  std::optional<int32_t> logprobs;
};

// Accepts the names of vLLM (prompt or messages, add_special_tokens) and of llama-server (content,
// add_special).
struct TokenizeRequest {
  std::string model;
  Prompt prompt;
  PromptOptions options;
  bool token_texts = false;
  bool pieces = false;                   // each token with its text, as llama-server's with_pieces
  ToolUse tools{};                       // of a chat: a forced call begins at the prompt's end
  std::optional<GrammarSpec> grammar{};  // of its answer: closes a thought that the prompt begins
  std::vector<std::string> warnings{};
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// Parse and check a body. A field that is unknown, or that asks for a missing feature, is refused.
// Only values that ask for nothing are ignored (see unsupported.h). Tools that this server cannot
// run are left out with a warning.
// Errors: InvalidArgument with the field's name (error.h).
absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body);
absl::StatusOr<CompletionRequest> parse_chat_request(std::string_view body);
absl::StatusOr<TokenizeRequest> parse_tokenize_request(std::string_view body);
absl::StatusOr<DetokenizeRequest> parse_detokenize_request(std::string_view body);

}  // namespace tessera
