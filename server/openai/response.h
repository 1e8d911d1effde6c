#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/kv_overrides.h"
#include "server/openai/request.h"

namespace tessera {

// What every part of one answer repeats.
struct CompletionHead {
  bool chat = false;
  std::string id;       // "chatcmpl-...", "cmpl-..."
  int64_t created = 0;  // seconds of the Unix epoch
  std::string model;
  std::optional<int32_t> logprobs{};         // how many of the likeliest tokens are shown
  std::optional<int32_t> prompt_logprobs{};  // likewise, of the prompt, apart from the choice's own
  bool usage = false;  // chunks have the field, null where it is not theirs to tell
};

// A token as log probabilities show it: its bytes, which may be half a character.
struct TokenText {
  std::string bytes{};
  float logprob = 0;
  int32_t id = 0;
};
struct ChosenToken {
  TokenText token{};
  std::vector<TokenText> top{};  // likeliest first
  int64_t offset = 0;            // characters of the choice's text before it
  bool first = false;            // of a prompt: nothing before it gave it a probability
};

// A choice, or what a chunk adds to it.
struct ChoiceText {
  int32_t index = 0;
  std::string text{};
  bool first = false;                 // chunk: the first of this choice
  std::string_view finish_reason{};   // empty: it goes on
  std::vector<ChosenToken> tokens{};  // of this text; only with logprobs
  std::vector<ChosenToken> prompt{};  // only with prompt_logprobs
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  KvReport kv = {};  // of the sequences that have ended
};

std::string print_completion(const CompletionHead& head, std::span<const ChoiceText> choices,
                             const Usage& usage);

// Server-sent events, "data: ...\n\n".
std::string print_event(const CompletionHead& head, const ChoiceText& part,
                        const std::optional<Usage>& usage);
std::string print_usage_event(const CompletionHead& head, const Usage& usage);
std::string print_error_event(const absl::Status& status);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

// What a model is, as /v1/models tells it.
struct ModelCard {
  std::string name;
  int64_t created = 0;
  int32_t context = 0;
};
std::string print_model(const ModelCard& model);
std::string print_models(const ModelCard& model);

// What the prefix cache holds and has done: our own.
std::string print_cache(const EngineStats& stats);

// /tokenize and /detokenize: vLLM's shapes, which are llama-server's too ("content" is its name for
// the text). `texts` are null without a wish for them.
std::string print_tokens(std::span<const int32_t> tokens, int32_t context,
                         const std::optional<std::vector<std::string>>& texts);
std::string print_prompt(std::string_view text);

// How many characters (code points) a text has.
int64_t count_characters(std::string_view utf8);

}  // namespace tessera
