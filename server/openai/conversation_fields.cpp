#include "server/openai/conversation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/status_macros.h"
#include "server/chat/template_variables.h"
#include "server/openai/messages.h"
#include "server/openai/ordered_members.h"
#include "server/request_limits.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

void read_tool(BodyFields& fields, const Ordered& value, const std::string& place, ToolUse& out) {
  if (!value.is_object() || value.value("type", Ordered()) != "function") {
    return fields.refuse(place, "must be an object with type \"function\"");
  }
  const Ordered function = value.value("function", Ordered());
  if (!function.is_object()) {
    return fields.refuse(place + ".function", "must be an object");
  }
  read_function(fields, function, place + ".function", out);
}

void read_tool_choice(BodyFields& fields, ToolUse& out) {
  using Choice = ToolUse::Choice;
  const json* given = fields.find("tool_choice");
  if (given == nullptr || *given == "auto") {
    return;
  }
  if (*given == "none") {
    out.choice = Choice::none;
    return;
  }
  out.choice = Choice::required;
  if (*given != "required") {
    const json function = given->is_object() && given->value("type", json()) == "function"
                              ? given->value("function", json())
                              : json();
    const json name = function.is_object() ? function.value("name", json()) : json();
    if (!name.is_string()) {
      fields.refuse("tool_choice",
                    fmt::format("must be none, auto, required, or an object with type \"function\" "
                                "and the function's name, not {}",
                                excerpt(*given)));
      return;
    }
    out.only = name.get<std::string>();
    if (!out.has(out.only)) {
      fields.refuse("tool_choice", fmt::format("names {}, which is not in tools", excerpt(name)));
      return;
    }
  }
  if (out.tools.empty()) {
    fields.refuse("tool_choice", "requires a call, but there are no tools");
  }
}

// Variables of the template: those of chat_template_kwargs, and reasoning_effort.
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
  return variables.empty() ? std::string() : variables.dump();
}

}  // namespace

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

void read_function(BodyFields& fields, const Ordered& function, const std::string& place,
                   ToolUse& out) {
  const Ordered name = function.value("name", Ordered());
  if (!name.is_string() || !is_tool_name(name.get_ref<const std::string&>())) {
    return fields.refuse(place + ".name", "must be 1 to 128 letters, digits, '_', '-' or '.'");
  }
  Tool tool{.name = name.get<std::string>()};
  tool.parameters = function.value("parameters", Ordered());
  if (!tool.parameters.is_null() && !tool.parameters.is_object()) {
    return fields.refuse(place + ".parameters", "must be a JSON schema, an object");
  }
  const Ordered strict = function.value("strict", Ordered());
  if (!strict.is_null() && !strict.is_boolean()) {
    return fields.refuse(place + ".strict", "must be a boolean");
  }
  tool.strict = strict == true;
  out.tools.push_back(std::move(tool));
}

void read_effort(BodyFields& fields, std::string_view name, Ordered& variables) {
  std::string effort;
  fields.text(name, effort);
  if (const absl::Status status = add_reasoning_effort(effort, variables); !status.ok()) {
    fields.refuse(name, std::string(status.message()));
  }
}

ToolUse read_tools(BodyFields& fields, const Ordered& ordered) {
  ToolUse out;
  if (const json* given = fields.find("tools"); given != nullptr) {
    if (!given->is_array() || given->size() > kMaxTools) {
      fields.refuse("tools", fmt::format("must be a list of at most {} tools", kMaxTools));
      return out;
    }
    size_t i = 0;
    for (const Ordered& tool : ordered.at("tools")) {
      read_tool(fields, tool, fmt::format("tools[{}]", i++), out);
    }
  }
  read_tool_choice(fields, out);
  fields.boolean("parallel_tool_calls", out.parallel);
  return out;
}

absl::StatusOr<Conversation> read_conversation(BodyFields& fields, const Ordered& ordered) {
  Conversation out;
  out.variables = read_variables(fields, ordered);
  fields.boolean("continue_final_message", out.continue_final);
  if (ordered.contains("tools")) {
    for (const Ordered& tool : ordered.at("tools")) {
      out.tools.push_back(tool.dump());
    }
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  TESSERA_ASSIGN_OR_RETURN(out.messages, read_messages(fields));
  if (out.continue_final && out.messages.back().role != "assistant") {
    return invalid_field("continue_final_message",
                         "continue_final_message needs a last message of the role assistant");
  }
  return out;
}

}  // namespace tessera
