#pragma once

#include "absl/status/statusor.h"
#include "server/chat/answer_reader.h"
#include "server/chat/chat_format.h"
#include "server/chat/tool_use.h"

namespace tessera {

struct GenerateRequest;
class Tokenizer;

// Prepares a chat. If its answer may or must call tools, adds their grammar, the beginning of a
// forced answer, and the special tokens that are printed. A grammar ends the prompt's thought.
// Returns: how its answers are read.
// Errors: InvalidArgument for a schema of a tool, if the server has no tool calls, and for a forced
// call beside another grammar, ignore_eos or a chat without a generation prompt.
absl::StatusOr<AnswerNotation> prepare_chat(const ChatFormat& format, const Tokenizer& tokenizer,
                                            const ToolUse& use, GenerateRequest& request);

}  // namespace tessera
