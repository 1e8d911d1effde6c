#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/chat/tool_use.h"
#include "server/request/generate_request.h"

namespace tessera {

// A request for the tokens of a text, or of the prompt that a chat would have.
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

}  // namespace tessera
