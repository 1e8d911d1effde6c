#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/answer_part.h"
#include "server/request/cache_marks.h"
#include "server/request/kv_overrides.h"

namespace tessera {

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

// Returns: number of characters (code points) of a text.
int64_t count_characters(std::string_view utf8);

}  // namespace tessera
