#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "models/text/conversation.h"
#include "server/openai/body_fields.h"

namespace tessera {

// Reads "messages" of a chat.
// Errors: InvalidArgument with the place ("messages[1].content").
absl::StatusOr<std::vector<ChatMessage>> read_messages(BodyFields& fields);

// Reads text that may be a string, or a list of parts with the type `type`. Several parts are
// joined by line breaks. Errors are in `fields`.
void read_text_parts(BodyFields& fields, std::string_view name, std::string& out);

}  // namespace tessera
