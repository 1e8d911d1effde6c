#pragma once

#include <string>
#include <vector>

namespace tessera {

// An assistant's call of a tool.
struct ToolCall {
  std::string id{};
  std::string name{};
  std::string arguments{};  // text of a JSON object, as the model wrote it; any text if cut off
};

struct ChatMessage {
  std::string role;
  std::string content{};
  std::vector<ToolCall> tool_calls{};  // of an assistant
  std::string tool_call_id{};          // of a tool's result: the call that it answers
  std::string name{};                  // of the author, or of the tool
  std::string reasoning{};             // of an assistant: the thoughts before its content
};

// The input of a chat template. All dialects of the API are converted to it.
struct Conversation {
  std::vector<ChatMessage> messages{};
  std::vector<std::string> tools{};  // JSON texts: {"type": "function", "function": {...}}
  std::string variables{};           // JSON text of an object: more variables of the template
  bool continue_final = false;       // the prompt ends inside the last message
};

}  // namespace tessera
