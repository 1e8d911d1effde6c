#pragma once

#include <vector>

#include "server/json/body_fields.h"
#include "text/conversation.h"

namespace tessera {

// Reads "input" of /v1/responses, a text or a list of items: messages, thoughts, calls of functions
// and of custom tools, and their results. Thoughts and calls belong to the assistant's message
// around them. Items of tools that others run are left out with a warning.
// Errors are in `fields`.
std::vector<ChatMessage> read_input(BodyFields& fields);

}  // namespace tessera
