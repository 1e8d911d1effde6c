#pragma once

#include "absl/status/statusor.h"
#include "server/chat/tool_use.h"
#include "tessera/v1/inference.pb.h"
#include "text/conversation.h"

namespace tessera {

struct ChatCall {
  Conversation conversation;
  ToolUse tools;
  bool add_generation_prompt = true;
  bool reasoning = true;  // thoughts are sent
};

// Reads the proto's Chat as HTTP reads the fields of the same meaning.
// Errors: InvalidArgument with the field's name.
absl::StatusOr<ChatCall> parse_chat(const v1::Chat& message);

}  // namespace tessera
