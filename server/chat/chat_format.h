#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/chat/answer_reader.h"
#include "server/chat/tool_format.h"
#include "server/chat/tool_use.h"

namespace tessera {

struct GenerateRequest;
class Tokenizer;

// The notation of the served model's answers.
struct ChatFormat {
  const ToolFormat* tools = nullptr;  // null: requests with tools are refused
  bool thoughts = false;
};

// tools: "auto" (from the template), "none" or the name of a format.
// Requires: `tools` is one of these.
ChatFormat chat_format_of(std::string_view template_source, std::string_view tools);

// Prepares a chat whose answer may or must call tools: adds the grammar, the beginning of a forced
// answer, and the special tokens that are printed.
// Returns: how its answers are read.
// Errors: InvalidArgument for a schema of a tool, or if the server has no tool calls.
absl::StatusOr<AnswerNotation> prepare_chat(const ChatFormat& format, const Tokenizer& tokenizer,
                                            const ToolUse& use, GenerateRequest& request);

}  // namespace tessera
