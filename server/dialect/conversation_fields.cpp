#include "server/dialect/conversation_fields.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "server/chat/template_variables.h"
#include "server/dialect/messages.h"
#include "server/json/ordered_members.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

// Variables of the template: those of chat_template_kwargs, which win, and those that have fields
// of their own in dialects of this one.
std::string read_variables(BodyFields& fields, const Ordered& ordered) {
  Ordered variables = Ordered::object();
  if (const json* given = fields.find("chat_template_kwargs"); given != nullptr) {
    if (!given->is_object() || given->size() > kMaxVariables) {
      fields.refuse("chat_template_kwargs",
                    fmt::format("must be an object of at most {} members", kMaxVariables));
      return {};
    }
    variables = ordered.at("chat_template_kwargs");
  }
  read_effort(fields, "reasoning_effort", variables);
  read_thinking(fields, variables);
  bool thinking = false;
  fields.boolean("enable_thinking", thinking);
  if (fields.find("enable_thinking") != nullptr) {
    variables.emplace("enable_thinking", thinking);
  }
  return variables.empty() ? std::string() : variables.dump();
}

}  // namespace

void read_effort(BodyFields& fields, std::string_view name, Ordered& variables) {
  std::string effort;
  fields.text(name, effort);
  if (const absl::Status status = add_reasoning_effort(effort, variables); !status.ok()) {
    fields.refuse(name, std::string(status.message()));
  }
}

void read_thinking(BodyFields& fields, Ordered& variables) {
  const json* given = fields.find("thinking");
  if (given == nullptr) {
    return;
  }
  const json type = given->is_object() ? given->value("type", json()) : json();
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return fields.refuse("thinking.type", "must be enabled, disabled or adaptive");
  }
  variables.emplace("enable_thinking", type != "disabled");
}

absl::StatusOr<Conversation> read_conversation(BodyFields& fields, const Ordered& ordered,
                                               std::string_view body) {
  Conversation out;
  out.variables = read_variables(fields, ordered);
  fields.boolean("continue_final_message", out.continue_final);
  TESSERA_RETURN_IF_ERROR(fields.status());
  TESSERA_ASSIGN_OR_RETURN(out.messages, read_messages(fields, body));
  if (out.continue_final && out.messages.back().role != "assistant") {
    return invalid_field("continue_final_message",
                         "continue_final_message needs a last message of the role assistant");
  }
  return out;
}

}  // namespace tessera
