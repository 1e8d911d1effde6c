#pragma once

#include "absl/status/statusor.h"
#include "text/conversation.h"
#include "text/jinja/value.h"

namespace tessera {

// Forms in which templates expect the same message.
struct MessageStyle {
  bool text_arguments = false;  // arguments of calls are JSON text, not an object
  bool null_content = false;    // the content of a message with calls alone is none, not ""
};

// Returns: the message as a template reads it. A role counts as template text if it has only
// letters, digits, "_" and "-", because templates make special tokens of it.
// Errors: InvalidArgument for arguments that are not a JSON object.
absl::StatusOr<jinja::Value> message_value(const ChatMessage& message, MessageStyle style);

}  // namespace tessera
