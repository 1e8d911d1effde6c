#include "server/anthropic/messages_printer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/unique_id.h"
#include "server/json/print_json.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

std::string message_event(const Json& json) {
  return fmt::format("event: {}\ndata: {}\n\n", json.at("type").get<std::string>(),
                     print_json(json));
}

// Anthropic's input tokens are those that were neither in the cache nor are kept there from now on.
Json message_usage(const Usage& usage) {
  const auto& [shortly, long_time] = usage.newly_kept;
  const int64_t created = shortly + long_time;
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens - created},
          {"cache_creation_input_tokens", created},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"cache_creation",
           {{"ephemeral_5m_input_tokens", shortly}, {"ephemeral_1h_input_tokens", long_time}}},
          {"output_tokens", usage.completion_tokens}};
}

std::string_view stop_reason(const ChoiceText& choice) {
  if (choice.finish_reason == "length") {
    return choice.context_full ? "model_context_window_exceeded" : "max_tokens";
  }
  if (choice.finish_reason == "tool_calls") {
    return "tool_use";
  }
  return choice.stop.empty() ? "end_turn" : "stop_sequence";
}

// Returns: a block of a call. Its input is the model's text: a parsed one would round long numbers
// and lose the zero of 1.10.
std::string tool_use_block(const CallPart& call) {
  const bool is_object = call.arguments.find_first_not_of(" \t\r\n") == call.arguments.find('{') &&
                         Json::accept(call.arguments);
  std::string block =
      print_json({{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", 0}});
  block.resize(block.size() - 2);  // "0}"
  block += is_object ? call.arguments : "{}";
  return block + '}';
}

// Returns: the blocks of an answer, as a list.
std::string content_of(const ChoiceText& choice) {
  std::vector<std::string> blocks;
  if (!choice.reasoning.empty()) {
    blocks.push_back(
        print_json({{"type", "thinking"}, {"thinking", choice.reasoning}, {"signature", ""}}));
  }
  if (!choice.text.empty()) {
    blocks.push_back(print_json({{"type", "text"}, {"text", choice.text}}));
  }
  std::transform(choice.calls.begin(), choice.calls.end(), std::back_inserter(blocks),
                 tool_use_block);
  return fmt::format("[{}]", fmt::join(blocks, ","));
}

Json stop_sequence(const ChoiceText& choice) {
  return choice.stop.empty() ? Json(nullptr) : Json(choice.stop);
}

class MessagesPrinter final : public AnswerPrinter {
 public:
  explicit MessagesPrinter(const std::string& model)
      : head_({{"id", "msg_" + unique_letters(24)},
               {"type", "message"},
               {"role", "assistant"},
               {"model", model}}) {}

  std::string whole(std::span<const ChoiceText> choices, const Usage& usage) override {
    const ChoiceText& choice = choices.front();
    const std::string head = print_json(head_);
    const std::string tail = print_json({{"stop_reason", stop_reason(choice)},
                                         {"stop_sequence", stop_sequence(choice)},
                                         {"usage", message_usage(usage)}});
    return fmt::format(R"({},"content":{},{})", std::string_view(head).substr(0, head.size() - 1),
                       content_of(choice), std::string_view(tail).substr(1));
  }

  std::string error(const absl::Status& status) override {
    return print_messages_error(status, http_status(status));
  }

  std::string begin(const Usage& usage) override {
    begun_ = true;
    Json message = head_;
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = message_usage(usage);
    return message_event({{"type", "message_start"}, {"message", std::move(message)}});
  }

  std::string part(const ChoiceText& part, const Usage& /*usage*/) override {
    std::string events;
    std::span<const CallPart> calls = part.calls;
    if (block_ == Block::call && !calls.empty() && calls.front().id.empty()) {
      arguments(events, calls.front());
      calls = calls.subspan(1);
    }
    if (!part.reasoning.empty()) {
      open(events, Block::thinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      delta(events, {{"type", "thinking_delta"}, {"thinking", part.reasoning}});
    }
    if (!part.text.empty()) {
      open(events, Block::text, {{"type", "text"}, {"text", ""}});
      delta(events, {{"type", "text_delta"}, {"text", part.text}});
    }
    for (const CallPart& call : calls) {
      if (!call.id.empty()) {
        close(events);
        open(events, Block::call,
             {{"type", "tool_use"},
              {"id", call.id},
              {"name", call.name},
              {"input", Json::object()}});
      }
      arguments(events, call);
    }
    if (!part.finish_reason.empty()) {
      stop_reason_ = stop_reason(part);
      stop_sequence_ = stop_sequence(part);
    }
    return events;
  }

  std::string end(const Usage& usage) override {
    std::string events;
    close(events);
    events += message_event(
        {{"type", "message_delta"},
         {"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
         {"usage", message_usage(usage)}});
    return events + message_event({{"type", "message_stop"}});
  }

  std::string failure(const absl::Status& status) override {
    return "event: error\ndata: " + error(status) + "\n\n";
  }

  // An event of the dialect, which follows the first one.
  std::string ping() override {
    return begun_ ? message_event({{"type", "ping"}}) : AnswerPrinter::ping();
  }

  bool shows_usage() const override { return true; }

 private:
  enum class Block : uint8_t { none, thinking, text, call };

  // Begins a block, unless one of the kind is open.
  void open(std::string& events, Block block, Json content) {
    if (block_ == block) {
      return;
    }
    close(events);
    block_ = block;
    events += message_event({{"type", "content_block_start"},
                             {"index", index_},
                             {"content_block", std::move(content)}});
  }
  void arguments(std::string& events, const CallPart& call) const {
    delta(events, {{"type", "input_json_delta"}, {"partial_json", call.arguments}});
  }
  void delta(std::string& events, Json content) const {
    events += message_event(
        {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(content)}});
  }
  void close(std::string& events) {
    if (std::exchange(block_, Block::none) != Block::none) {
      events += message_event({{"type", "content_block_stop"}, {"index", index_++}});
    }
  }

  const Json head_;
  bool begun_ = false;
  Block block_ = Block::none;
  int32_t index_ = 0;
  std::string_view stop_reason_;
  Json stop_sequence_;
};

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::unique_ptr<AnswerPrinter> make_messages_printer(const std::string& model) {
  return std::make_unique<MessagesPrinter>(model);
}

std::string print_messages_error(const absl::Status& status, int code) {
  return print_json(
      {{"type", "error"},
       {"error", {{"type", error_type(code)}, {"message", std::string(status.message())}}}});
}

std::string print_token_count(std::size_t tokens) {
  return print_json({{"input_tokens", tokens}});
}

}  // namespace tessera
