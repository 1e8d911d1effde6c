#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/chat/answer_part.h"
#include "server/kv_overrides.h"
#include "server/openai/request.h"

namespace tessera {

// Fields that every part of one answer repeats.
struct CompletionHead {
  bool chat = false;
  std::string id;       // "chatcmpl-...", "cmpl-..."
  int64_t created = 0;  // seconds of the Unix epoch
  std::string model;
  std::optional<int32_t> logprobs{};         // number of most likely tokens shown
  std::optional<int32_t> prompt_logprobs{};  // the same for the prompt, reported separately
  bool usage = false;         // chunks have the field; null in chunks that report no usage
  std::string fingerprint{};  // of the server's configuration (system_fingerprint)
  bool legacy_calls = false;  // of a chat: an answer's call is its `function_call`
  bool token_ids = false;     // choices have their token ids, and those of the prompt
};

// Token in log probabilities. Its bytes may be part of a character.
struct TokenText {
  std::string bytes{};
  float logprob = 0;
  int32_t id = 0;
};
struct ChosenToken {
  TokenText token{};
  std::vector<TokenText> top{};  // likeliest first
  int32_t rank = 0;              // among all tokens, from 1; 0: not known
  std::string text{};            // of a completion: the token's part of the choice's text
  int64_t offset = 0;            // characters of the choice's text before the token
  bool first = false;            // first token of a prompt, which has no probability
  bool thought = false;          // part of a chat's reasoning
};

// A choice, or the part of it in one chunk.
struct ChoiceText {
  int32_t index = 0;
  std::string text{};
  std::string reasoning{};              // of a chat
  std::vector<CallPart> calls{};        // of a chat
  bool first = false;                   // chunk: the first chunk of this choice
  std::string_view finish_reason{};     // empty: not finished
  std::string stop{};                   // the stop string that ended it
  std::optional<int32_t> stop_token{};  // the token of stop_token_ids that ended it
  bool context_full = false;            // it ended before max_tokens
  std::vector<int32_t> ids{};           // of this text; only with CompletionHead::token_ids
  std::vector<int32_t> prompt_ids{};    // likewise, in the first chunk
  std::vector<ChosenToken> tokens{};    // of this text; only with logprobs
  std::vector<ChosenToken> prompt{};    // only with prompt_logprobs

  bool any() const { return !text.empty() || !reasoning.empty() || !calls.empty(); }
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  NewlyKept newly_kept = {};     // of the prompts, before marks of the client
  int64_t reasoning_tokens = 0;  // of the completions: in thoughts
  KvReport kv = {};              // of the finished sequences
};

std::string print_completion(const CompletionHead& head, std::span<const ChoiceText> choices,
                             const Usage& usage);

// Server-sent events, "data: ...\n\n".
std::string print_event(const CompletionHead& head, const ChoiceText& part,
                        const std::optional<Usage>& usage);
std::string print_usage_event(const CompletionHead& head, const Usage& usage);
std::string print_error_event(const absl::Status& status);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

// Description of a model in /v1/models.
struct ModelCard {
  std::string name;
  int64_t created = 0;
  int32_t context = 0;
  std::string root;      // the name of the model that `name` is an alias of, or `name`
  std::string parent{};  // the name of the model that an adapter changes; empty: it is none
};
std::string print_model(const ModelCard& model);
std::string print_models(std::span<const ModelCard> models);

// Replies of /tokenize and /detokenize in vLLM's format, which serves llama-server's clients too
// ("content" is its name for the text). `text_of`: of a token; none if texts are not requested,
// printed as null. Both lists may be long, so nothing but the reply takes memory.
std::string print_tokens(std::span<const int32_t> tokens, int32_t context,
                         const std::function<std::string(int32_t)>& text_of);
// As llama-server with with_pieces: each token is an object of its id and its piece. A piece is the
// token's text, or the list of its bytes if they are not valid UTF-8.
std::string print_pieces(std::span<const int32_t> tokens, int32_t context,
                         const std::function<std::string(int32_t)>& text_of);
std::string print_prompt(std::string_view text);

// Returns: number of characters (code points) of a text.
int64_t count_characters(std::string_view utf8);

}  // namespace tessera
