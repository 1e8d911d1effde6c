#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "server/json/body_fields.h"
#include "text/conversation.h"

namespace tessera {

// Reads "messages" of a chat. `body`: the text of the object that `fields` reads.
// Errors: InvalidArgument with the place ("messages[1].content").
absl::StatusOr<std::vector<ChatMessage>> read_messages(BodyFields& fields, std::string_view body);

// Reads text that may be a string, or a list of parts of the types text and refusal. Several parts
// are joined by line breaks. Errors are in `fields`.
void read_text_parts(BodyFields& fields, std::string_view name, std::string& out);

}  // namespace tessera
