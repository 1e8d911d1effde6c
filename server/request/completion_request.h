#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/chat/tool_use.h"
#include "server/request/generate_request.h"

namespace tessera {

// A request of /v1/completions or /v1/chat/completions.
struct CompletionRequest {
  bool chat = false;
  std::string model;               // empty: the served model
  std::vector<Prompt> prompts;     // a chat is one prompt
  GenerateRequest each;            // all fields but the prompt
  int32_t n = 1;                   // choices of each prompt
  int32_t best_of = 1;             // >= n: sequences of each prompt; the n most likely are returned
  bool token_ids_as_text = false;  // prints tokens as "token_id:17", unique even for equal texts
  bool token_ids = false;          // choices have their token ids
  std::optional<int32_t> prompt_logprobs;  // reported separately, as in vLLM
  bool echo_logprobs = false;  // of an echo: the prompt's tokens are among those of the choice
  ToolUse tools{};             // of a chat
  bool legacy_calls = false;   // the answer has `function_call`, not `tool_calls`
  bool reasoning = true;       // a chat's answer shows its thoughts
  std::string request_id;      // from the client; empty: generated
  bool stream = false;
  bool include_usage = false;           // sends a last chunk with the usage
  bool continuous_usage = false;        // reports the usage in every chunk
  std::vector<std::string> warnings{};  // parts of the body that are left out

  // Number of most likely tokens shown for each token; none: no log probabilities.
  std::optional<int32_t> logprobs;
};

}  // namespace tessera
