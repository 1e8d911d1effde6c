#include "server/responses/input_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "server/chat/custom_input.h"

namespace tessera {
namespace {

using nlohmann::json;

class ItemReader {
 public:
  explicit ItemReader(BodyFields& fields) : fields_(fields) {}

  void read(const json& item, const std::string& place) {
    if (!item.is_object()) {
      return fields_.refuse(place, "must be an object");
    }
    BodyFields inner(item, place + ".");
    std::string type = item.contains("role") ? "message" : "";
    inner.text("type", type);
    if (type == "message") {
      read_message(inner);
    } else if (type == "function_call" || type == "custom_tool_call") {
      read_call(inner, type == "custom_tool_call");
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      ChatMessage result{.role = "tool", .tool_call_id = required(inner, "call_id")};
      read_parts(inner, "output", {"input_text", "output_text"}, result.content);
      messages_.push_back(std::move(result));
    } else if (type == "reasoning") {
      read_thought(inner);
    } else if (is_left_out(type)) {
      return fields_.warn(place, fmt::format("is left out: it is of the type {}", type));
    } else {
      inner.refuse("type", fmt::format("is {}, which is not supported by this server",
                                       excerpt(item.value("type", json()))));
    }
    for (const char* of_answers : {"id", "status", "phase"}) {
      inner.find(of_answers);
    }
    inner.refuse_unknown();
    fields_.adopt(inner.status());
  }

  std::vector<ChatMessage> take() { return std::move(messages_); }

 private:
  using PartTypes = std::initializer_list<std::string_view>;

  void read_message(BodyFields& fields) {
    ChatMessage message{.role = required(fields, "role")};
    if (message.role == "assistant") {
      if (!only_thoughts()) {
        messages_.push_back({.role = "assistant"});
      }
      read_parts(fields, "content", {"output_text", "input_text", "refusal"},
                 messages_.back().content);
      return;
    }
    read_parts(fields, "content", {"input_text", "text"}, message.content);
    messages_.push_back(std::move(message));
  }

  // Items of tools that OpenAI or its clients' own machines run. A conversation that began there
  // can go on without them.
  static bool is_left_out(std::string_view type) {
    constexpr std::string_view kHosted[] = {"web_search_call",       "file_search_call",
                                            "code_interpreter_call", "computer_call",
                                            "computer_call_output",  "image_generation_call",
                                            "local_shell_call",      "shell_call",
                                            "shell_call_output",     "local_shell_call_output",
                                            "apply_patch_call",      "apply_patch_call_output",
                                            "mcp_list_tools",        "mcp_approval_request",
                                            "mcp_approval_response", "mcp_call",
                                            "tool_search_call",      "tool_search_output"};
    return std::find(std::begin(kHosted), std::end(kHosted), type) != std::end(kHosted);
  }

  void read_call(BodyFields& fields, bool custom) {
    ToolCall call{.id = required(fields, "call_id"), .name = required(fields, "name")};
    std::string space;
    fields.text("namespace", space);
    call.name = space.empty() ? call.name : space + "." + call.name;
    std::string text;
    fields.text(custom ? "input" : "arguments", text);
    call.arguments = custom ? *custom_arguments(text) : text.empty() ? "{}" : text;
    if (messages_.empty() || messages_.back().role != "assistant") {
      messages_.push_back({.role = "assistant"});
    }
    messages_.back().tool_calls.push_back(std::move(call));
  }

  void read_thought(BodyFields& fields) {
    std::string thought;
    if (fields.find("content") != nullptr) {
      read_parts(fields, "content", {"reasoning_text"}, thought);
    }
    if (fields.find("summary") != nullptr && thought.empty()) {
      read_parts(fields, "summary", {"summary_text"}, thought);
    }
    if (const json* secret = fields.find("encrypted_content"); secret && !secret->empty()) {
      fields_.warn("input", "has thoughts of another server that are encrypted: they are left out");
    }
    if (!only_thoughts()) {
      messages_.push_back({.role = "assistant"});
    }
    messages_.back().reasoning += thought;
  }

  // True if the last message is an assistant's that has neither content nor calls yet.
  bool only_thoughts() const {
    return !messages_.empty() && messages_.back().role == "assistant" &&
           messages_.back().content.empty() && messages_.back().tool_calls.empty();
  }

  static std::string required(BodyFields& fields, std::string_view name) {
    std::string text;
    fields.text(name, text);
    if (text.empty()) {
      fields.refuse(name, "is missing");
    }
    return text;
  }

  // Reads a text, or a list of parts of these types, joined by line breaks.
  static void read_parts(BodyFields& fields, std::string_view name, PartTypes types,
                         std::string& out) {
    const json* given = fields.find(name);
    if (given == nullptr || given->is_string()) {
      if (given == nullptr) {
        fields.refuse(name, "is missing");
      } else {
        out = given->get_ref<const std::string&>();
      }
      return;
    }
    if (!given->is_array()) {
      return fields.refuse(name, "must be a string or a list of parts");
    }
    for (std::size_t i = 0; i < given->size(); ++i) {
      const json& part = (*given)[i];
      const std::string place = fmt::format("{}[{}]", name, i);
      const json type = part.is_object() ? part.value("type", json()) : json();
      if (std::none_of(types.begin(), types.end(),
                       [&](std::string_view one) { return type == one; })) {
        return fields.refuse(
            place, fmt::format("is a part of the type {}, which is not supported", excerpt(type)));
      }
      const std::string field = type == "refusal" ? "refusal" : "text";
      const json text = part.value(field, json());
      if (!text.is_string()) {
        return fields.refuse(fmt::format("{}.{}", place, field), "must be a string");
      }
      out += i > 0 ? "\n" : "";
      out += text.get_ref<const std::string&>();
    }
  }

  BodyFields& fields_;
  std::vector<ChatMessage> messages_;
};

}  // namespace

std::vector<ChatMessage> read_input(BodyFields& fields) {
  const json* input = fields.find("input");
  if (input != nullptr && input->is_string()) {
    return {{.role = "user", .content = input->get<std::string>()}};
  }
  if (input == nullptr || !input->is_array() || input->empty()) {
    fields.refuse("input", "must be a text or a list of at least one item");
    return {};
  }
  ItemReader reader(fields);
  for (std::size_t i = 0; i < input->size(); ++i) {
    reader.read((*input)[i], fmt::format("input[{}]", i));
  }
  return reader.take();
}

}  // namespace tessera
