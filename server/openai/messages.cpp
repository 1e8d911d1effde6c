#include "server/openai/messages.h"

#include <fmt/format.h>

#include <utility>

#include "models/status_macros.h"
#include "server/openai/error.h"

namespace tessera {
namespace {

using nlohmann::json;

// A call in the history: {"id", "type": "function", "function": {"name", "arguments"}}.
void read_call(BodyFields& fields, const json& value, const std::string& place, ChatMessage& out) {
  const json function = value.is_object() ? value.value("function", json()) : json();
  if (!function.is_object()) {
    return fields.refuse(place + ".function", "must be an object");
  }
  const json name = function.value("name", json());
  if (!name.is_string() || name == "") {
    return fields.refuse(place + ".function.name", "must be a string");
  }
  ToolCall call{.name = name.get<std::string>(), .arguments = "{}"};
  const json id = value.value("id", json());
  if (!id.is_null() && !id.is_string()) {
    return fields.refuse(place + ".id", "must be a string");
  }
  call.id = id.is_string() ? id.get<std::string>() : "";
  const json arguments = function.value("arguments", json("{}"));
  if (arguments.is_string() && arguments != "") {
    call.arguments = arguments.get<std::string>();
  } else if (arguments.is_object()) {
    call.arguments = arguments.dump();
  }
  const absl::StatusOr<json> parsed = parse_object(call.arguments);
  if (!parsed.ok() || !(arguments.is_string() || arguments.is_object() || arguments.is_null())) {
    return fields.refuse(place + ".function.arguments", "must be the text of a JSON object");
  }
  out.tool_calls.push_back(std::move(call));
}

void read_calls(BodyFields& fields, ChatMessage& out) {
  const json* calls = fields.find("tool_calls");
  if (calls == nullptr || calls->empty()) {
    return;
  }
  if (!calls->is_array() || out.role != "assistant") {
    return fields.refuse("tool_calls", "must be a list, of a message of the role assistant");
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    read_call(fields, (*calls)[i], fmt::format("tool_calls[{}]", i), out);
  }
}

absl::StatusOr<ChatMessage> read_message(const json& value, const std::string& name) {
  if (!value.is_object()) {
    return invalid_field(name, fmt::format("{} must be an object, not {}", name, excerpt(value)));
  }
  ChatMessage message;
  BodyFields fields(value, name + ".");
  // Fields of earlier answers that clients send back as history. Empty ones are ignored.
  for (const std::string_view part : {"function_call", "audio", "refusal", "annotations"}) {
    const json* given = fields.find(part);
    if (given != nullptr && !given->empty() && *given != "") {
      fields.refuse(part, "is not supported by this server", "unsupported_parameter");
    }
  }
  fields.find("provider_specific_fields");  // LiteLLM's copy of an answer's fields: ignored
  fields.text("name", message.name);
  fields.text("role", message.role);
  if (message.role.empty()) {
    fields.refuse("role", "is missing");
  }
  fields.text("tool_call_id", message.tool_call_id);
  fields.text("reasoning", message.reasoning);
  fields.text("reasoning_content", message.reasoning);
  read_calls(fields, message);
  if (message.tool_calls.empty() || fields.find("content") != nullptr) {
    read_text_parts(fields, "content", message.content);
  }
  fields.refuse_unknown();
  if (!fields.status().ok()) {
    return fields.status();
  }
  return message;
}

}  // namespace

void read_text_parts(BodyFields& fields, std::string_view name, std::string& out) {
  const json* content = fields.find(name);
  if (content == nullptr) {
    fields.refuse(name, "is missing");
  } else if (content->is_string()) {
    out = content->get_ref<const std::string&>();
  } else if (!content->is_array()) {
    fields.refuse(name,
                  fmt::format("must be a string or a list of parts, not {}", excerpt(*content)));
  } else {
    for (std::size_t i = 0; i < content->size(); ++i) {
      const json& part = (*content)[i];
      const std::string place = fmt::format("{}[{}]", name, i);
      const json type = part.is_object() ? part.value("type", json("text")) : json();
      if (type != "text") {
        fields.refuse(
            place,
            fmt::format("is not a part with type \"text\", the only one supported; its type is {}",
                        excerpt(type)));
        return;
      }
      const auto text = part.find("text");
      if (text == part.end() || !text->is_string()) {
        fields.refuse(place + ".text", "must be a string");
        return;
      }
      for (const auto& [key, value] : part.items()) {
        if (key != "type" && key != "text" && !value.is_null()) {
          fields.refuse(place + "." + key, "is not known to this server", "unknown_parameter");
        }
      }
      out += i > 0 ? "\n" : "";
      out += text->get_ref<const std::string&>();
    }
  }
}

absl::StatusOr<std::vector<ChatMessage>> read_messages(BodyFields& fields) {
  const json* value = fields.find("messages");
  if (value == nullptr) {
    return invalid_field("messages", "messages is missing");
  }
  if (!value->is_array() || value->empty()) {
    return invalid_field(
        "messages",
        fmt::format("messages must be a list of at least one message, not {}", excerpt(*value)));
  }
  std::vector<ChatMessage> messages;
  messages.reserve(value->size());
  for (std::size_t i = 0; i < value->size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(ChatMessage message,
                             read_message((*value)[i], fmt::format("messages[{}]", i)));
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace tessera
