#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "server/chat/tool_use.h"
#include "server/dialect/answer_printer.h"
#include "text/conversation.h"

namespace tessera {

// Fields that all prints of one response share.
struct ResponseHead {
  std::string id;
  std::string model;
  nlohmann::ordered_json repeated;  // fields of the request that an answer repeats
  ToolUse tools{};                  // by which calls in namespaces are shown

  // Receives a response that was not cut off by an error, when it is printed: the assistant's
  // message and the body. May be empty.
  std::function<void(ChatMessage answer, const std::string& body)> store{};
};

// Prints answers of /v1/responses: items of output, or events in OpenAI's order.
std::unique_ptr<AnswerPrinter> make_responses_printer(ResponseHead head);

// Returns: {"id","object":"response","deleted":true}.
std::string print_deleted_response(const std::string& id);

// Returns: {"object":"response.input_tokens","input_tokens":tokens}.
std::string print_input_tokens(std::size_t tokens);

}  // namespace tessera
