#include "text/message_value.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/json_value.h"

namespace tessera {
namespace {

using jinja::Dict;
using jinja::None;
using jinja::Text;
using jinja::Value;

// Roles of published templates, of which some make a special token: "<|user|>". Another role must
// not become one: "end" would end the turn.
constexpr std::array<std::string_view, 9> kRoles = {"assistant", "developer",   "function",
                                                    "ipython",   "observation", "system",
                                                    "tool",      "tool_call",   "user"};

bool is_known_role(std::string_view role) {
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

void add(Dict& dict, const char* key, Value value) {
  dict.items.emplace_back(Text(key), std::move(value));
}

void add_text(Dict& dict, const char* key, const std::string& text) {
  if (!text.empty()) {
    add(dict, key, Value(Text(repair_utf8(text), true)));
  }
}

absl::StatusOr<Value> call_value(const ToolCall& call, MessageStyle style) {
  Dict function;
  add(function, "name", Value(Text(repair_utf8(call.name), true)));
  if (style.text_arguments) {
    add(function, "arguments", Value(Text(repair_utf8(call.arguments), true)));
  } else {
    // Templates that ask for an object walk over its members. A text that is none, such as that of
    // an answer that was cut off, would end the conversation.
    absl::StatusOr<Value> arguments = parse_json_value(call.arguments);
    if (!arguments.ok() || arguments->dict() == nullptr) {
      arguments = Value::dict({});
    }
    TESSERA_RETURN_IF_ERROR(arguments.status());
    add(function, "arguments", *std::move(arguments));
  }
  Dict dict;
  add_text(dict, "id", call.id);
  add(dict, "type", Value(Text("function")));
  TESSERA_ASSIGN_OR_RETURN(Value made, Value::dict(std::move(function)));
  add(dict, "function", std::move(made));
  return Value::dict(std::move(dict));
}

}  // namespace

absl::StatusOr<Value> message_value(const ChatMessage& message, MessageStyle style) {
  Dict dict;
  add(dict, "role", Value(Text(repair_utf8(message.role), !is_known_role(message.role))));
  const bool none = style.null_content && message.content.empty() && !message.tool_calls.empty();
  add(dict, "content", none ? Value(None{}) : Value(Text(repair_utf8(message.content), true)));
  if (!message.tool_calls.empty()) {
    std::vector<Value> calls;
    for (const ToolCall& call : message.tool_calls) {
      TESSERA_ASSIGN_OR_RETURN(Value value, call_value(call, style));
      calls.push_back(std::move(value));
    }
    TESSERA_ASSIGN_OR_RETURN(Value list, Value::list(std::move(calls)));
    add(dict, "tool_calls", std::move(list));
  }
  add_text(dict, "tool_call_id", message.tool_call_id);
  add_text(dict, "name", message.name);
  add_text(dict, "reasoning_content", message.reasoning);
  return Value::dict(std::move(dict));
}

}  // namespace tessera
