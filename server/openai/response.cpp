#include "server/openai/response.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/openai/error.h"

namespace tessera {

namespace {

using Json = nlohmann::ordered_json;

// Text is valid UTF-8 but for tokens shown one by one, which may be halves of characters.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string event(const Json& json) {
  return "data: " + dump(json) + "\n\n";
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json token_json(const TokenText& token) {
  Json bytes = Json::array();
  for (const char c : token.bytes) {
    bytes.push_back(static_cast<uint8_t>(c));
  }
  return {{"token", token.bytes}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

Json chat_logprobs(const ChoiceText& choice) {
  Json content = Json::array();
  for (const ChosenToken& chosen : choice.tokens) {
    Json token = token_json(chosen.token);
    token["top_logprobs"] = Json::array();
    for (const TokenText& other : chosen.top) {
      token["top_logprobs"].push_back(token_json(other));
    }
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

Json completion_logprobs(const ChoiceText& choice) {
  Json offsets = Json::array(), logprobs = Json::array(), tokens = Json::array();
  Json tops = Json::array();
  int64_t offset = choice.text_offset;
  for (const ChosenToken& chosen : choice.tokens) {
    offsets.push_back(offset);
    offset += count_characters(chosen.token.bytes);
    logprobs.push_back(chosen.token.logprob);
    tokens.push_back(chosen.token.bytes);
    Json top = Json::object();
    for (const TokenText& other : chosen.top) {
      top[other.bytes] = other.logprob;
    }
    top[chosen.token.bytes] = chosen.token.logprob;  // also where it is none of the likeliest
    tops.push_back(std::move(top));
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(tops)}};
}

Json logprobs_json(const CompletionHead& head, const ChoiceText& choice) {
  if (!head.logprobs) {
    return nullptr;
  }
  return head.chat ? chat_logprobs(choice) : completion_logprobs(choice);
}

Json head_json(const CompletionHead& head, std::string_view object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json reason_json(std::string_view reason) {
  return reason.empty() ? Json(nullptr) : Json(reason);
}

Json delta_json(const ChoiceText& part) {
  Json delta = Json::object();
  if (part.first) {
    delta["role"] = "assistant";
  }
  if (part.first || !part.text.empty()) {
    delta["content"] = part.text;
  }
  return delta;
}

Json model_json(const ModelCard& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "tessera"},
          {"root", model.name},
          {"parent", nullptr},
          {"max_model_len", model.context}};
}

}  // namespace

std::string print_completion(const CompletionHead& head, std::span<const ChoiceText> choices,
                             const Usage& usage) {
  Json list = Json::array();
  for (const ChoiceText& choice : choices) {
    Json item = {{"index", choice.index}};
    if (head.chat) {
      item["message"] = {{"role", "assistant"}, {"content", choice.text}};
    } else {
      item["text"] = choice.text;
    }
    item["logprobs"] = logprobs_json(head, choice);
    item["finish_reason"] = reason_json(choice.finish_reason);
    list.push_back(std::move(item));
  }
  Json json = head_json(head, head.chat ? "chat.completion" : "text_completion");
  json["choices"] = std::move(list);
  json["usage"] = usage_json(usage);
  return dump(json);
}

std::string print_event(const CompletionHead& head, const ChoiceText& part,
                        const std::optional<Usage>& usage) {
  Json item = {{"index", part.index}};
  if (head.chat) {
    item["delta"] = delta_json(part);
  } else {
    item["text"] = part.text;
  }
  item["logprobs"] = part.tokens.empty() ? Json(nullptr) : logprobs_json(head, part);
  item["finish_reason"] = reason_json(part.finish_reason);
  Json json = head_json(head, head.chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array({std::move(item)});
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
  return dump(model_json(model));
}

std::string print_models(const ModelCard& model) {
  return dump({{"object", "list"}, {"data", Json::array({model_json(model)})}});
}

std::string print_tokens(std::span<const int32_t> tokens, int32_t context,
                         const std::optional<std::vector<std::string>>& texts) {
  return dump({{"count", tokens.size()},
               {"max_model_len", context},
               {"tokens", std::vector<int32_t>(tokens.begin(), tokens.end())},
               {"token_strs", texts ? Json(*texts) : Json(nullptr)}});
}

std::string print_prompt(std::string_view text) {
  return dump({{"prompt", text}});
}

int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
}

}  // namespace tessera
