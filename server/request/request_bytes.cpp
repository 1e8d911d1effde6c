#include "server/request/request_bytes.h"

#include <optional>
#include <string>
#include <variant>

namespace tessera {
namespace {

std::size_t bytes_of(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return text->size();
  }
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
    return ids->size() * sizeof(int32_t);
  }
  const Conversation& chat = std::get<Conversation>(prompt);
  std::size_t bytes = chat.variables.size() + message_bytes(chat.messages);
  for (const std::string& tool : chat.tools) {
    bytes += tool.size();
  }
  return bytes;
}

std::size_t bytes_of(const Infill& infill) {
  std::size_t bytes = infill.suffix.size() + infill.begin.size();
  for (const InfillFile& file : infill.files) {
    bytes += file.name.size() + file.text.size();
  }
  return bytes;
}

}  // namespace

std::size_t message_bytes(const std::vector<ChatMessage>& messages) {
  std::size_t bytes = messages.size() * sizeof(ChatMessage);
  for (const ChatMessage& message : messages) {
    bytes += message.content.size() + message.reasoning.size() + message.name.size() +
             message.role.size() + message.tool_call_id.size();
    for (const ToolCall& call : message.tool_calls) {
      bytes += sizeof(ToolCall) + call.id.size() + call.name.size() + call.arguments.size();
    }
  }
  return bytes;
}

std::size_t prompt_bytes(const CompletionRequest& request) {
  std::size_t bytes = 1;
  for (const Prompt& prompt : request.prompts) {
    bytes += bytes_of(prompt);
  }
  const std::optional<Infill>& infill = request.each.prompt_options.infill;
  return bytes + (infill ? bytes_of(*infill) : 0);
}

}  // namespace tessera
