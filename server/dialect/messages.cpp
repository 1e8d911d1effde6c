#include "server/dialect/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/chat/custom_input.h"
#include "server/json/call_arguments.h"
#include "server/json/raw_json.h"

namespace tessera {
namespace {

using nlohmann::json;

// Reads the messages of one body.
class MessageReader {
 public:
  explicit MessageReader(std::string_view body) : body_(body) {}

  absl::StatusOr<ChatMessage> read(const json& value, std::size_t index) {
    const std::string name = fmt::format("messages[{}]", index);
    if (!value.is_object()) {
      return invalid_field(name, fmt::format("{} must be an object, not {}", name, excerpt(value)));
    }
    index_ = index;
    raw_calls_.clear();
    ChatMessage message;
    BodyFields fields(value, name + ".");
    pass_over(fields);
    fields.text("name", message.name);
    fields.text("role", message.role);
    if (message.role.empty()) {
      fields.refuse("role", "is missing");
    }
    fields.text("tool_call_id", message.tool_call_id);
    fields.text("reasoning", message.reasoning);
    fields.text("reasoning_content", message.reasoning);
    read_calls(fields, message);
    read_content(fields, message);
    fields.refuse_unknown();
    if (!fields.status().ok()) {
      return fields.status();
    }
    return message;
  }

 private:
  // Reads fields of earlier answers that clients send back as history.
  static void pass_over(BodyFields& fields) {
    for (const std::string_view part : {"function_call", "audio"}) {
      const json* given = fields.find(part);
      if (given != nullptr && !given->empty() && *given != "") {
        fields.refuse(part, "is not supported by this server", "unsupported_parameter");
      }
    }
    // Sources of a text, LiteLLM's and OpenRouter's copies of other fields, and a mark for the
    // cache, which read_chat_marks() reads.
    for (const std::string_view ignored :
         {"annotations", "provider_specific_fields", "thinking_blocks", "reasoning_details",
          "cache_control"}) {
      fields.find(ignored);
    }
  }

  // A refusal is the text of an answer that has no other.
  static void read_content(BodyFields& fields, ChatMessage& message) {
    std::string refusal;
    fields.text("refusal", refusal);
    const bool optional = !message.tool_calls.empty() || !refusal.empty() ||
                          (message.role == "assistant" && !message.reasoning.empty());
    if (!optional || fields.find("content") != nullptr) {
      read_text_parts(fields, "content", message.content);
    }
    if (message.content.empty()) {
      message.content = std::move(refusal);
    }
  }

  void read_calls(BodyFields& fields, ChatMessage& out) {
    const json* calls = fields.find("tool_calls");
    if (calls == nullptr || calls->empty()) {
      return;
    }
    if (!calls->is_array() || out.role != "assistant") {
      return fields.refuse("tool_calls", "must be a list, of a message of the role assistant");
    }
    for (std::size_t i = 0; i < calls->size(); ++i) {
      read_call(fields, (*calls)[i], i, out);
    }
  }

  // A call in the history: {"id", "type": "function", "function": {"name", "arguments"}}, or of a
  // tool with a text as its input {"id", "type": "custom", "custom": {"name", "input"}}.
  void read_call(BodyFields& fields, const json& value, std::size_t index, ChatMessage& out) {
    const bool custom = value.is_object() && value.value("type", json()) == "custom";
    const std::string kind = custom ? "custom" : "function";
    const std::string place = fmt::format("tool_calls[{}]", index);
    const json part = value.is_object() ? value.value(kind, json()) : json();
    if (!part.is_object()) {
      return fields.refuse(fmt::format("{}.{}", place, kind), "must be an object");
    }
    const json name = part.value("name", json());
    if (!name.is_string() || name == "") {
      return fields.refuse(fmt::format("{}.{}.name", place, kind), "must be a string");
    }
    const json id = value.value("id", json());
    if (!id.is_null() && !id.is_string()) {
      return fields.refuse(place + ".id", "must be a string");
    }
    ToolCall call{.id = id.is_string() ? id.get<std::string>() : "",
                  .name = name.get<std::string>()};
    const json given = part.value(custom ? "input" : "arguments", json());
    const std::optional<std::string> arguments =
        custom ? custom_arguments(given)
               : call_arguments(given, [&] { return raw_arguments(index); });
    if (!arguments) {
      return fields.refuse(
          fmt::format("{}.{}", place, custom ? "custom.input" : "function.arguments"),
          "must be a text");
    }
    call.arguments = *arguments;
    out.tool_calls.push_back(std::move(call));
  }

  // Finds the calls of a message in the body once, and the messages too.
  std::string_view raw_arguments(std::size_t call) {
    if (raw_messages_.empty()) {
      raw_messages_ = raw_items(raw_member(body_, "messages"));
    }
    if (raw_calls_.empty()) {
      raw_calls_ = raw_items(raw_member(raw_messages_.at(index_), "tool_calls"));
    }
    return raw_member(raw_member(raw_calls_.at(call), "function"), "arguments");
  }

  const std::string_view body_;
  std::size_t index_ = 0;  // of the message
  std::vector<std::string_view> raw_messages_;
  std::vector<std::string_view> raw_calls_;  // of the message
};

// Appends the text of a part of the content.
// Returns: false if it is none. The error is in `fields`.
bool add_part(BodyFields& fields, const json& part, const std::string& place, std::string& out) {
  const json type = part.is_object() ? part.value("type", json("text")) : json();
  if (type != "text" && type != "refusal") {
    fields.refuse(
        place,
        fmt::format("is not a part with type \"text\", the only one supported; its type is {}",
                    excerpt(type)));
    return false;
  }
  const std::string name = type.get<std::string>();
  const auto text = part.find(name);
  if (text == part.end() || !text->is_string()) {
    fields.refuse(place + "." + name, "must be a string");
    return false;
  }
  // Marks for the cache are read_chat_marks()'s, and sources of an earlier answer are no text.
  constexpr std::string_view kKnown[] = {"type", "cache_control", "citations", "annotations"};
  for (const auto& [key, value] : part.items()) {
    if (key != name && !value.is_null() && std::ranges::find(kKnown, key) == std::end(kKnown)) {
      fields.refuse(place + "." + key, "is not known to this server", "unknown_parameter");
      return false;
    }
  }
  out += text->get_ref<const std::string&>();
  return true;
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
      out += i > 0 ? "\n" : "";
      if (!add_part(fields, (*content)[i], fmt::format("{}[{}]", name, i), out)) {
        return;
      }
    }
  }
}

absl::StatusOr<std::vector<ChatMessage>> read_messages(BodyFields& fields, std::string_view body) {
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
  MessageReader reader(body);
  for (std::size_t i = 0; i < value->size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(ChatMessage message, reader.read((*value)[i], i));
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace tessera
