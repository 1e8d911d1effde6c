#include "text/plain_tools.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace tessera {
namespace {

constexpr const char* kBefore =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr const char* kAfter =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

std::string quoted(const std::string& text) {
  using Json = nlohmann::json;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void write_calls(ChatMessage& message) {
  for (const ToolCall& call : std::exchange(message.tool_calls, {})) {
    message.content += message.content.empty() ? "" : "\n";
    message.content += "<tool_call>\n{\"name\": " + quoted(call.name) +
                       ", \"arguments\": " + call.arguments + "}\n</tool_call>";
  }
}

void write_result(ChatMessage& message) {
  message.role = "user";
  message.content = "<tool_response>\n" + message.content + "\n</tool_response>";
}

void write_tools(Conversation& conversation) {
  std::string text = kBefore;
  for (const std::string& tool : std::exchange(conversation.tools, {})) {
    text += "\n" + tool;
  }
  text += kAfter;
  if (conversation.messages.front().role == "system") {
    std::string& content = conversation.messages.front().content;
    content += "\n\n" + text;
  } else {
    conversation.messages.insert(conversation.messages.begin(),
                                 {.role = "system", .content = text});
  }
}

}  // namespace

Conversation with_plain_tools(const Conversation& conversation, TemplateAbilities abilities) {
  Conversation written = conversation;
  bool after_result = false;
  std::vector<ChatMessage> messages;
  for (ChatMessage& message : written.messages) {
    if (!abilities.calls) {
      write_calls(message);
    }
    const bool result = !abilities.results && message.role == "tool";
    if (result) {
      write_result(message);
    }
    if (result && after_result) {  // results of one turn share a message: roles alternate
      messages.back().content += "\n" + message.content;
    } else {
      messages.push_back(std::move(message));
    }
    after_result = result;
  }
  written.messages = std::move(messages);
  if (!abilities.tools && !written.tools.empty()) {
    write_tools(written);
  }
  return written;
}

}  // namespace tessera
