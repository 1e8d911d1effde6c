#include "server/dialect/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/utf8.h"

namespace tessera {

namespace {

using Json = nlohmann::ordered_json;

// Returns: a token's text, or its bytes in OpenAI's notation if they are not valid UTF-8.
std::string token_name(const std::string& bytes) {
  if (is_valid_utf8(bytes)) {
    return bytes;
  }
  std::string name = "bytes:";
  for (const char c : bytes) {
    name += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  }
  return name;
}

Json token_json(const TokenText& token) {
  Json bytes = Json::array();
  for (const char c : token.bytes) {
    bytes.push_back(static_cast<uint8_t>(c));
  }
  return {{"token", token.bytes}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

std::size_t shown(const ChosenToken& chosen, int32_t wanted) {
  return std::min(chosen.top.size(), static_cast<std::size_t>(wanted));
}

// Among tokens with the same text the most likely one is kept.
Json top_json(const ChosenToken& chosen, int32_t wanted) {
  Json top = Json::object();
  for (std::size_t i = 0; i < shown(chosen, wanted); ++i) {
    top.emplace(token_name(chosen.top[i].bytes), chosen.top[i].logprob);
  }
  top.emplace(token_name(chosen.token.bytes), chosen.token.logprob);
  return top;
}

Json ranked_json(const TokenText& token, std::size_t rank) {
  return {{"logprob", token.logprob}, {"rank", rank}, {"decoded_token", token_name(token.bytes)}};
}

}  // namespace

Json token_logprobs(const ChosenToken& chosen, int32_t wanted) {
  Json token = token_json(chosen.token);
  token["top_logprobs"] = Json::array();
  for (std::size_t i = 0; i < shown(chosen, wanted); ++i) {
    token["top_logprobs"].push_back(token_json(chosen.top[i]));
  }
  return token;
}

Json chat_logprobs(const ChoiceText& choice, int32_t wanted) {
  Json content = Json::array();
  for (const ChosenToken& chosen : choice.tokens) {
    content.push_back(token_logprobs(chosen, wanted));
  }
  return {{"content", std::move(content)}};
}

Json completion_logprobs(const ChoiceText& choice, int32_t wanted) {
  Json offsets = Json::array(), logprobs = Json::array(), tokens = Json::array();
  Json tops = Json::array();
  for (const ChosenToken& chosen : choice.tokens) {
    offsets.push_back(chosen.offset);
    tokens.push_back(token_name(chosen.text));
    logprobs.push_back(chosen.first ? Json(nullptr) : Json(chosen.token.logprob));
    tops.push_back(chosen.first ? Json(nullptr) : top_json(chosen, wanted));
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(tops)}};
}

Json prompt_logprobs_json(const std::vector<ChosenToken>& prompt, int32_t wanted) {
  Json list = Json::array();
  for (const ChosenToken& chosen : prompt) {
    if (chosen.first) {
      list.push_back(nullptr);
      continue;
    }
    Json tokens = Json::object();
    for (std::size_t i = 0; i < shown(chosen, wanted); ++i) {
      tokens[std::to_string(chosen.top[i].id)] = ranked_json(chosen.top[i], i + 1);
    }
    tokens.emplace(std::to_string(chosen.token.id),
                   ranked_json(chosen.token, static_cast<std::size_t>(chosen.rank)));
    list.push_back(std::move(tokens));
  }
  return list;
}

}  // namespace tessera
