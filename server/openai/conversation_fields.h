#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/text/conversation.h"
#include "server/chat/tool_use.h"
#include "server/openai/body_fields.h"

namespace tessera {

// Names of the members that read_tools() and read_conversation() take from ordered_members().
inline constexpr std::string_view kConversationMembers[] = {"tools", "chat_template_kwargs"};

// Returns: true for a name that grammars and templates can write as it is.
bool is_tool_name(std::string_view name);

// Reads a function's name, parameters and strict. Errors are in `fields`, with `place`.
void read_function(BodyFields& fields, const nlohmann::ordered_json& function,
                   const std::string& place, ToolUse& out);

// Reads how much a model may think, into variables of its template.
void read_effort(BodyFields& fields, std::string_view name, nlohmann::ordered_json& variables);

// Reads tools, tool_choice and parallel_tool_calls. Errors are in `fields`.
ToolUse read_tools(BodyFields& fields, const nlohmann::ordered_json& ordered);

// Reads messages, the tools' descriptions, chat_template_kwargs, reasoning_effort and
// continue_final_message.
// Errors: InvalidArgument with the field; the first error of `fields` comes before.
absl::StatusOr<Conversation> read_conversation(BodyFields& fields,
                                               const nlohmann::ordered_json& ordered);

}  // namespace tessera
