#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/json/body_fields.h"
#include "text/conversation.h"

namespace tessera {

// Names of the members that read_tools() and read_conversation() take from ordered_members().
inline constexpr std::string_view kConversationMembers[] = {"tools", "chat_template_kwargs"};

// Read how much a model may think, into variables of its template: a word for it, and {"type":
// "enabled"}, "adaptive" or "disabled".
void read_effort(BodyFields& fields, std::string_view name, nlohmann::ordered_json& variables);
void read_thinking(BodyFields& fields, nlohmann::ordered_json& variables);

// Reads messages, chat_template_kwargs, reasoning_effort, enable_thinking, thinking and
// continue_final_message. `body`: the text of the object that `fields` reads.
// Errors: InvalidArgument with the field; the first error of `fields` comes before.
absl::StatusOr<Conversation> read_conversation(BodyFields& fields,
                                               const nlohmann::ordered_json& ordered,
                                               std::string_view body);

}  // namespace tessera
