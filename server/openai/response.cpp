#include "server/openai/response.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "base/utf8.h"
#include "server/base/error.h"
#include "server/dialect/kv_cache.h"
#include "server/dialect/logprobs.h"
#include "server/json/print_json.h"

namespace tessera {

namespace {

using Json = nlohmann::ordered_json;

std::string event(const Json& json) {
  return "data: " + print_json(json) + "\n\n";
}

Json usage_json(const Usage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.reasoning_tokens > 0) {
    json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  }
  if (!usage.kv.empty()) {
    json["kv_cache"] = kv_cache_json(usage.kv);
  }
  return json;
}

std::string piece_json(int32_t token, const std::string& text) {
  if (is_valid_utf8(text)) {
    return fmt::format(R"({{"id":{},"piece":{}}})", token, print_json(text));
  }
  std::string bytes;
  for (const char c : text) {
    fmt::format_to(std::back_inserter(bytes), "{}{}", bytes.empty() ? "" : ",",
                   static_cast<uint8_t>(c));
  }
  return fmt::format(R"({{"id":{},"piece":[{}]}})", token, bytes);
}

Json logprobs_json(const CompletionHead& head, const ChoiceText& choice) {
  if (!head.logprobs) {
    return nullptr;
  }
  return head.chat ? chat_logprobs(choice, *head.logprobs)
                   : completion_logprobs(choice, *head.logprobs);
}

Json head_json(const CompletionHead& head, std::string_view object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

// vLLM's field: the stop string or the stop token that ended the text. Ours: the full context.
void add_stop(const ChoiceText& choice, Json& item) {
  if (!choice.stop.empty()) {
    item["stop_reason"] = choice.stop;
  } else if (choice.stop_token) {
    item["stop_reason"] = *choice.stop_token;
  } else if (choice.context_full) {
    item["stop_reason"] = "context_length";
  }
}

// vLLM's fields. The prompt's ids stand in a completion's choice, and beside the choices of a chat.
void add_ids(const CompletionHead& head, const ChoiceText& choice, Json& item) {
  if (head.token_ids) {
    item["token_ids"] = choice.ids;
    if (!head.chat && choice.first) {
      item["prompt_token_ids"] = choice.prompt_ids;
    }
  }
}

void add_prompt_ids(const CompletionHead& head, const ChoiceText& first, Json& json) {
  if (head.token_ids && head.chat && first.first) {
    json["prompt_token_ids"] = first.prompt_ids;
  }
}

Json reason_json(const CompletionHead& head, std::string_view reason) {
  if (head.legacy_calls && reason == "tool_calls") {
    return "function_call";
  }
  return reason.empty() ? Json(nullptr) : Json(reason);
}

// A part of a call has its id and name where it begins. `streamed`: with its index.
Json call_json(const CallPart& call, bool streamed) {
  Json json = Json::object();
  if (streamed) {
    json["index"] = call.index;
  }
  const char* const kind = call.custom ? "custom" : "function";
  Json part = Json::object();
  if (!call.id.empty()) {
    json["id"] = call.id;
    json["type"] = kind;
    part["name"] = call.name;
  }
  part[call.custom ? "input" : "arguments"] = call.arguments;
  json[kind] = std::move(part);
  return json;
}

Json calls_json(std::span<const CallPart> calls, bool streamed) {
  Json list = Json::array();
  for (const CallPart& call : calls) {
    list.push_back(call_json(call, streamed));
  }
  return list;
}

// The only call of an answer, or a part of it, in OpenAI's older form.
Json legacy_call_json(const CallPart& call) {
  Json json = Json::object();
  if (!call.id.empty()) {
    json["name"] = call.name;
  }
  json["arguments"] = call.arguments;
  return json;
}

Json message_json(const CompletionHead& head, const ChoiceText& choice) {
  Json message = {{"role", "assistant"}, {"content", choice.text}};
  if (!choice.reasoning.empty()) {
    message["reasoning_content"] = choice.reasoning;
  }
  if (!choice.calls.empty()) {
    if (choice.text.empty()) {
      message["content"] = nullptr;
    }
    if (head.legacy_calls) {
      message["function_call"] = legacy_call_json(choice.calls.front());
    } else {
      message["tool_calls"] = calls_json(choice.calls, /*streamed=*/false);
    }
  }
  return message;
}

Json delta_json(const CompletionHead& head, const ChoiceText& part) {
  Json delta = Json::object();
  if (part.first) {
    delta["role"] = "assistant";
  }
  if (!part.reasoning.empty()) {
    delta["reasoning_content"] = part.reasoning;
  }
  if (!part.text.empty() || (part.first && !part.any())) {
    delta["content"] = part.text;
  }
  if (!part.calls.empty() && head.legacy_calls) {
    delta["function_call"] = legacy_call_json(part.calls.front());
  } else if (!part.calls.empty()) {
    delta["tool_calls"] = calls_json(part.calls, /*streamed=*/true);
  }
  return delta;
}

Json model_json(const ModelCard& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "tessera"},
          {"root", model.root},
          {"parent", model.parent.empty() ? Json() : Json(model.parent)},
          {"max_model_len", model.context}};
}

}  // namespace

std::string print_completion(const CompletionHead& head, std::span<const ChoiceText> choices,
                             const Usage& usage) {
  Json list = Json::array();
  for (const ChoiceText& choice : choices) {
    Json item = {{"index", choice.index}};
    if (head.chat) {
      item["message"] = message_json(head, choice);
    } else {
      item["text"] = choice.text;
    }
    item["logprobs"] = logprobs_json(head, choice);
    item["finish_reason"] = reason_json(head, choice.finish_reason);
    add_stop(choice, item);
    add_ids(head, choice, item);
    if (head.prompt_logprobs && !head.chat) {
      item["prompt_logprobs"] = prompt_logprobs_json(choice.prompt, *head.prompt_logprobs);
    }
    list.push_back(std::move(item));
  }
  Json json = head_json(head, head.chat ? "chat.completion" : "text_completion");
  json["choices"] = std::move(list);
  json["usage"] = usage_json(usage);
  if (head.prompt_logprobs && head.chat) {  // a chat has one prompt, so not per choice
    json["prompt_logprobs"] = prompt_logprobs_json(choices.front().prompt, *head.prompt_logprobs);
  }
  add_prompt_ids(head, choices.front(), json);
  return print_json(json);
}

std::string print_event(const CompletionHead& head, const ChoiceText& part,
                        const std::optional<Usage>& usage) {
  Json item = {{"index", part.index}};
  if (head.chat) {
    item["delta"] = delta_json(head, part);
  } else {
    item["text"] = part.text;
  }
  item["logprobs"] = part.tokens.empty() ? Json(nullptr) : logprobs_json(head, part);
  item["finish_reason"] = reason_json(head, part.finish_reason);
  add_stop(part, item);
  add_ids(head, part, item);
  Json json = head_json(head, head.chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array({std::move(item)});
  add_prompt_ids(head, part, json);
  if (usage) {
    json["usage"] = usage_json(*usage);
  } else if (head.usage) {
    json["usage"] = nullptr;
  }
  return event(json);
}

std::string print_usage_event(const CompletionHead& head, const Usage& usage) {
  Json json = head_json(head, head.chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array();
  json["usage"] = usage_json(usage);
  return event(json);
}

std::string print_error_event(const absl::Status& status) {
  return "data: " + print_error(status) + "\n\n";
}

std::string print_model(const ModelCard& model) {
  return print_json(model_json(model));
}

std::string print_models(std::span<const ModelCard> models) {
  Json list = Json::array();
  for (const ModelCard& model : models) {
    list.push_back(model_json(model));
  }
  return print_json({{"object", "list"}, {"data", std::move(list)}});
}

std::string print_tokens(std::span<const int32_t> tokens, int32_t context,
                         const std::function<std::string(int32_t)>& text_of) {
  std::string reply =
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[)", tokens.size(), context);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    fmt::format_to(std::back_inserter(reply), "{}{}", i > 0 ? "," : "", tokens[i]);
  }
  reply += R"(],"token_strs":)";
  if (!text_of) {
    return reply + "null}";
  }
  reply += '[';
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    reply += i > 0 ? "," : "";
    reply += print_json(text_of(tokens[i]));
  }
  reply += "]}";
  return reply;
}

std::string print_pieces(std::span<const int32_t> tokens, int32_t context,
                         const std::function<std::string(int32_t)>& text_of) {
  // A string that grows holds two copies at times; a reply of many megabytes must not.
  std::size_t bytes = 80;
  for (const int32_t token : tokens) {
    bytes += piece_json(token, text_of(token)).size() + 1;
  }
  std::string reply;
  reply.reserve(bytes);
  fmt::format_to(std::back_inserter(reply), R"({{"count":{},"max_model_len":{},"tokens":[)",
                 tokens.size(), context);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    reply += i > 0 ? "," : "";
    reply += piece_json(tokens[i], text_of(tokens[i]));
  }
  reply += R"(],"token_strs":null})";
  return reply;
}

std::string print_prompt(std::string_view text) {
  const std::string printed = print_json(text);
  std::string reply;
  reply.reserve(2 * printed.size() + 32);
  reply += R"({"prompt":)";
  reply += printed;
  reply += R"(,"content":)";
  reply += printed;
  reply += '}';
  return reply;
}

}  // namespace tessera
