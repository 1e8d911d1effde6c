#include "server/responses/responses_printer.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/unique_id.h"
#include "server/chat/custom_input.h"
#include "server/dialect/logprobs.h"
#include "server/generation/token_queue.h"
#include "server/json/print_json.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxTop = 20;

Json response_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// One item of the output: thoughts, a message, or a call of a function or of a custom tool.
struct Item {
  enum class Kind : uint8_t { thought, message, call, custom };

  bool is_call() const { return kind == Kind::call || kind == Kind::custom; }

  Kind kind = Kind::message;
  std::string id{};
  std::string text{};             // or the call's arguments or input
  CallPart call{};                // id and name
  std::string space{};            // namespace of the call's name; empty: none
  Json logprobs = Json::array();  // of a message
  std::string_view status = "in_progress";
};

Json content_part(const Item& item) {
  if (item.kind == Item::Kind::thought) {
    return {{"type", "reasoning_text"}, {"text", item.text}};
  }
  return {{"type", "output_text"},
          {"text", item.text},
          {"annotations", Json::array()},
          {"logprobs", item.logprobs}};
}

// `begun`: as the item is announced, without its content.
Json item_json(const Item& item, bool begun) {
  const Json content = begun ? Json::array() : Json::array({content_part(item)});
  switch (item.kind) {
    case Item::Kind::thought:
      return {{"id", item.id},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", content},
              {"status", item.status}};
    case Item::Kind::message:
      return {{"id", item.id},
              {"type", "message"},
              {"status", item.status},
              {"role", "assistant"},
              {"content", content}};
    case Item::Kind::call:
    case Item::Kind::custom:
      break;
  }
  const bool custom = item.kind == Item::Kind::custom;
  Json json = {{"id", item.id},          {"type", custom ? "custom_tool_call" : "function_call"},
               {"status", item.status},  {"call_id", item.call.id},
               {"name", item.call.name}, {custom ? "input" : "arguments", item.text}};
  if (!item.space.empty()) {
    json["namespace"] = item.space;
  }
  return json;
}

std::string item_id(Item::Kind kind) {
  constexpr std::string_view kPrefixes[] = {"rs_", "msg_", "fc_", "ctc_"};
  return std::string(kPrefixes[static_cast<std::size_t>(kind)]) + unique_letters(24);
}

class ResponsesPrinter final : public AnswerPrinter {
 public:
  explicit ResponsesPrinter(ResponseHead head)
      : head_(std::move(head)),
        created_(unix_seconds()),
        held_bytes_(2 * print_json(head_.repeated).size()) {}

  std::string whole(std::span<const ChoiceText> choices, const Usage& usage) override {
    std::string unused;
    add(choices.front(), unused);
    return finish(usage, unused);
  }

  std::string error(const absl::Status& status) override { return print_error(status); }

  std::string begin(const Usage& /*usage*/) override {
    const Json response = response_json("in_progress");
    std::string events = event("response.created", {{"response", response}});
    return events += event("response.in_progress", {{"response", response}});
  }

  std::string part(const ChoiceText& part, const Usage& /*usage*/) override {
    std::string events;
    add(part, events);
    return events;
  }

  std::string end(const Usage& usage) override {
    std::string events;
    finish(usage, events);
    return events;
  }

  std::string failure(const absl::Status& status) override {
    if (open_) {
      items_.back().status = "incomplete";
    }
    Json response = response_json("failed");
    response["error"] = {
        {"code", http_status(status) == 429 ? "rate_limit_exceeded" : "server_error"},
        {"message", std::string(status.message())}};
    return event("response.failed", {{"response", std::move(response)}});
  }

  bool shows_usage() const override { return true; }
  bool holds_text() const override { return true; }
  std::size_t held_bytes() const override { return held_bytes_; }

 private:
  using Kind = Item::Kind;

  // Adds new text to the items, and its events to `events`.
  void add(const ChoiceText& part, std::string& events) {
    std::span<const CallPart> calls = part.calls;
    if (open_ && items_.back().is_call() && !calls.empty() && calls.front().id.empty()) {
      write(events, calls.front().arguments, nullptr);
      calls = calls.subspan(1);
    }
    if (!part.reasoning.empty()) {
      open(events, Kind::thought, {});
      write(events, part.reasoning, nullptr);
    }
    if (!part.text.empty()) {
      open(events, Kind::message, {});
      Json logprobs = logprobs_of(part);
      items_.back().logprobs.insert(items_.back().logprobs.end(), logprobs.begin(), logprobs.end());
      write(events, part.text, &logprobs);
    }
    for (const CallPart& call : calls) {
      if (!call.id.empty()) {
        close(events, "completed");
        open(events, call.custom ? Kind::custom : Kind::call, call);
      }
      write(events, call.arguments, nullptr);
    }
    if (!part.finish_reason.empty()) {
      cut_off_ = part.finish_reason == "length";
    }
  }

  // Begins an item, unless one of the kind is open.
  void open(std::string& events, Kind kind, const CallPart& call) {
    if (open_ && items_.back().kind == kind) {
      return;
    }
    close(events, "completed");
    open_ = true;
    const Tool* const tool = head_.tools.find(call.name);
    items_.push_back(
        {.kind = kind,
         .id = item_id(kind),
         .call = {.id = call.id,
                  .name = tool == nullptr ? call.name : std::string(tool->shown_name())},
         .space = tool == nullptr ? "" : tool->space});
    events += event("response.output_item.added",
                    {{"output_index", index()}, {"item", item_json(items_.back(), true)}});
    if (!items_.back().is_call()) {
      events +=
          event("response.content_part.added", place({{"part", content_part(items_.back())}}));
    }
  }

  void write(std::string& events, const std::string& text, const Json* logprobs) {
    if (text.empty()) {
      return;
    }
    items_.back().text += text;
    held_bytes_ += 8 * text.size();  // the last events repeat it four times, the body once
    Json fields = {{"delta", text}};
    if (logprobs != nullptr) {
      held_bytes_ += 4 * logprobs->size() * printed_token_bytes(1 + kMaxTop);
      fields["logprobs"] = *logprobs;
    }
    events += event(std::string(stem()) + ".delta", place(std::move(fields)));
  }

  void close(std::string& events, std::string_view status) {
    if (!std::exchange(open_, false)) {
      return;
    }
    Item& item = items_.back();
    item.status = status;
    constexpr const char* kTexts[] = {"text", "text", "arguments", "input"};
    Json fields = {{kTexts[static_cast<std::size_t>(item.kind)], item.text}};
    if (item.kind == Kind::message) {
      fields["logprobs"] = item.logprobs;
    } else if (item.is_call()) {
      fields["name"] = item.call.name;
    }
    events += event(std::string(stem()) + ".done", place(std::move(fields)));
    if (!item.is_call()) {
      events += event("response.content_part.done", place({{"part", content_part(item)}}));
    }
    events += event("response.output_item.done",
                    {{"output_index", index()}, {"item", item_json(item, false)}});
  }

  // Ends the response. Returns: its body.
  std::string finish(const Usage& usage, std::string& events) {
    if (items_.empty()) {
      open(events, Kind::message, {});
    }
    const std::string_view status = cut_off_ ? "incomplete" : "completed";
    close(events, status);
    Json response = response_json(status);
    if (cut_off_) {
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    response["usage"] = response_usage(usage);
    std::string body = print_json(response);
    if (head_.store) {
      head_.store(answer(), body);
    }
    events += event(fmt::format("response.{}", status), {{"response", std::move(response)}});
    return body;
  }

  ChatMessage answer() const {
    ChatMessage message{.role = "assistant"};
    for (const Item& item : items_) {
      switch (item.kind) {
        case Kind::thought:
          message.reasoning += item.text;
          break;
        case Kind::message:
          message.content += item.text;
          break;
        case Kind::call:
        case Kind::custom:
          message.tool_calls.push_back(
              {.id = item.call.id,
               .name = (item.space.empty() ? "" : item.space + ".") + item.call.name,
               .arguments = item.kind == Kind::custom ? *custom_arguments(item.text) : item.text});
      }
    }
    return message;
  }

  // The items that are closed are its output.
  Json response_json(std::string_view status) const {
    Json json = {{"id", head_.id},
                 {"object", "response"},
                 {"created_at", created_},
                 {"status", status},
                 {"background", false},
                 {"completed_at", status == "completed" ? Json(unix_seconds()) : Json(nullptr)},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"model", head_.model},
                 {"output", Json::array()},
                 {"usage", nullptr}};
    for (const Item& item : items_) {
      json["output"].push_back(item_json(item, false));
    }
    json.update(head_.repeated);
    return json;
  }

  // Prefix of the names of the open item's events.
  std::string_view stem() const {
    constexpr std::string_view kStems[] = {"response.reasoning_text", "response.output_text",
                                           "response.function_call_arguments",
                                           "response.custom_tool_call_input"};
    return kStems[static_cast<std::size_t>(items_.back().kind)];
  }

  std::size_t index() const { return items_.size() - 1; }

  // Adds where the last item is.
  Json place(Json fields) const {
    Json placed = {{"item_id", items_.back().id}, {"output_index", index()}};
    if (!items_.back().is_call()) {
      placed["content_index"] = 0;
    }
    placed.update(fields);
    return placed;
  }

  std::string event(std::string_view type, Json fields) {
    Json json = {{"type", type}, {"sequence_number", sequence_++}};
    json.update(fields);
    return fmt::format("event: {}\ndata: {}\n\n", type, print_json(json));
  }

  Json logprobs_of(const ChoiceText& part) const {
    const int32_t top = head_.repeated.at("top_logprobs").get<int32_t>();
    Json list = Json::array();
    for (const ChosenToken& token : part.tokens) {
      if (!token.thought) {
        list.push_back(token_logprobs(token, top));
      }
    }
    return list;
  }

  const ResponseHead head_;
  const int64_t created_;
  std::vector<Item> items_;
  bool open_ = false;  // the last item
  bool cut_off_ = false;
  int64_t sequence_ = 0;
  std::size_t held_bytes_;
};

}  // namespace

std::unique_ptr<AnswerPrinter> make_responses_printer(ResponseHead head) {
  return std::make_unique<ResponsesPrinter>(std::move(head));
}

std::string print_deleted_response(const std::string& id) {
  return print_json({{"id", id}, {"object", "response"}, {"deleted", true}});
}

std::string print_input_tokens(std::size_t tokens) {
  return print_json({{"object", "response.input_tokens"}, {"input_tokens", tokens}});
}

}  // namespace tessera
