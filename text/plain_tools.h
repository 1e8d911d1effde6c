#pragma once

#include "text/conversation.h"

namespace tessera {

// The parts of tools that a template prints, found by rendering examples.
struct TemplateAbilities {
  bool tools = false;    // descriptions of tools
  bool calls = false;    // tool_calls of assistants
  bool results = false;  // messages of the role "tool"
};

// Writes the parts of tools that the template would not print into messages that it prints, in the
// notation of Hermes: tools into the system message, calls into the assistant's text, results into
// a user's message.
Conversation with_plain_tools(const Conversation& conversation, TemplateAbilities abilities);

}  // namespace tessera
