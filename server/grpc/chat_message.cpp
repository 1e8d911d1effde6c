#include "server/grpc/chat_message.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/chat/template_variables.h"
#include "server/dialect/tool_fields.h"
#include "server/json/ordered_members.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

absl::Status bad(const std::string& field, const std::string& message) {
  return absl::InvalidArgumentError(fmt::format("chat.{} {}", field, message));
}

absl::StatusOr<Json> read_object(const std::string& field, const std::string& text) {
  absl::StatusOr<Json> value = parse_ordered(text);
  if (!value.ok()) {
    return bad(field, fmt::format("must be the text of a JSON object: {}",
                                  std::string(value.status().message())));
  }
  return value->is_object() ? std::move(value) : bad(field, "must be the text of a JSON object");
}

absl::StatusOr<ToolCall> read_call(const std::string& field, const v1::ToolCall& message) {
  if (message.name().empty()) {
    return bad(field + ".name", "is missing");
  }
  ToolCall call{.id = message.id(), .name = message.name(), .arguments = "{}"};
  if (!message.arguments().empty()) {
    call.arguments = message.arguments();  // an answer that was cut off has no JSON
  }
  return call;
}

absl::StatusOr<ChatMessage> read_message(const std::string& field, const v1::ChatMessage& message) {
  if (message.role().empty()) {
    return bad(field + ".role", "is missing");
  }
  if (message.tool_calls_size() > 0 && message.role() != "assistant") {
    return bad(field + ".tool_calls", "must be of a message of the role assistant");
  }
  ChatMessage made{.role = message.role(),
                   .content = message.content(),
                   .tool_call_id = message.tool_call_id(),
                   .name = message.name(),
                   .reasoning = message.reasoning()};
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(ToolCall call, read_call(fmt::format("{}.tool_calls[{}]", field, i),
                                                      message.tool_calls(i)));
    made.tool_calls.push_back(std::move(call));
  }
  return made;
}

// Adds a tool to `out`, and the JSON by which a template shows it.
absl::Status read_tool(const std::string& field, const v1::Tool& message, ChatCall& out) {
  if (!is_tool_name(message.name())) {
    return bad(field + ".name", "must be 1 to 128 letters, digits, '_', '-' or '.'");
  }
  Tool tool{.name = message.name(), .strict = message.strict()};
  Json function = {{"name", message.name()}};
  if (!message.description().empty()) {
    function["description"] = message.description();
  }
  if (!message.parameters().empty()) {
    TESSERA_ASSIGN_OR_RETURN(tool.parameters,
                             read_object(field + ".parameters", message.parameters()));
    function["parameters"] = tool.parameters;
  }
  if (message.has_strict()) {
    function["strict"] = message.strict();
  }
  if (!message.returns().empty()) {
    TESSERA_ASSIGN_OR_RETURN(function["return"],
                             read_object(field + ".returns", message.returns()));
  }
  out.tools.tools.push_back(std::move(tool));
  out.conversation.tools.push_back(
      Json{{"type", "function"}, {"function", std::move(function)}}.dump());
  return absl::OkStatus();
}

absl::Status read_choice(const v1::Chat& message, ToolUse& out) {
  using Choice = ToolUse::Choice;
  switch (message.tool_choice()) {
    case v1::TOOL_CHOICE_UNSPECIFIED:
    case v1::TOOL_CHOICE_AUTO:
      break;
    case v1::TOOL_CHOICE_NONE:
      out.choice = Choice::none;
      break;
    case v1::TOOL_CHOICE_REQUIRED:
      out.choice = Choice::required;
      break;
    default:
      return bad("tool_choice", fmt::format("has the value {}, which this server does not know",
                                            static_cast<int>(message.tool_choice())));
  }
  out.only = message.required_tool();
  out.parallel = !message.has_parallel_tool_calls() || message.parallel_tool_calls();
  if (!out.only.empty() && out.choice != Choice::required) {
    return bad("required_tool", "is only allowed with TOOL_CHOICE_REQUIRED");
  }
  if (out.choice == Choice::required && out.tools.empty()) {
    return bad("tool_choice", "requires a call, but there are no tools");
  }
  return out.only.empty() || out.has(out.only)
             ? absl::OkStatus()
             : bad("required_tool", "is not the name of one of the tools");
}

absl::Status read_tools(const v1::Chat& message, ChatCall& out) {
  if (std::cmp_greater(message.tools_size(), kMaxTools)) {
    return bad("tools",
               fmt::format("has {} tools, at most {} may be", message.tools_size(), kMaxTools));
  }
  for (int i = 0; i < message.tools_size(); ++i) {
    TESSERA_RETURN_IF_ERROR(read_tool(fmt::format("tools[{}]", i), message.tools(i), out));
  }
  return read_choice(message, out.tools);
}

absl::Status read_variables(const v1::Chat& message, Conversation& out) {
  Json variables = Json::object();
  if (!message.template_variables().empty()) {
    TESSERA_ASSIGN_OR_RETURN(variables,
                             read_object("template_variables", message.template_variables()));
    if (variables.size() > kMaxVariables) {
      return bad("template_variables",
                 fmt::format("has {} members, at most {} may be", variables.size(), kMaxVariables));
    }
  }
  if (const absl::Status status = add_reasoning_effort(message.reasoning_effort(), variables);
      !status.ok()) {
    return bad("reasoning_effort", std::string(status.message()));
  }
  out.variables = variables.empty() ? std::string() : variables.dump();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatCall> parse_chat(const v1::Chat& message) {
  if (message.messages().empty()) {
    return bad("messages", "must have at least one message");
  }
  ChatCall call;
  call.conversation.messages.reserve(static_cast<std::size_t>(message.messages_size()));
  for (int i = 0; i < message.messages_size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(ChatMessage made,
                             read_message(fmt::format("messages[{}]", i), message.messages(i)));
    call.conversation.messages.push_back(std::move(made));
  }
  TESSERA_RETURN_IF_ERROR(read_tools(message, call));
  TESSERA_RETURN_IF_ERROR(read_variables(message, call.conversation));
  const bool continues = message.continue_final_message();
  if (continues && call.conversation.messages.back().role != "assistant") {
    return bad("continue_final_message", "needs a last message of the role assistant");
  }
  call.conversation.continue_final = continues;
  call.add_generation_prompt =
      message.has_add_generation_prompt() ? message.add_generation_prompt() : !continues;
  if (continues && call.add_generation_prompt) {
    return bad("continue_final_message", "cannot be combined with add_generation_prompt");
  }
  call.reasoning = !message.has_include_reasoning() || message.include_reasoning();
  return call;
}

}  // namespace tessera
