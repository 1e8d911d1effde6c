#include "server/grpc/answer_messages.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "server/grpc/kv_options.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

// Most of one message. With log probabilities a token is some KiB.
constexpr std::size_t kMessageBytes = 64 << 10;
constexpr std::size_t kMessageTokens = 256;

// Returns: the first bytes of `text`, as many as a message may have and not a part of a character.
// Removes them.
std::string_view take_text(std::string_view& text) {
  std::size_t end = std::min(text.size(), kMessageBytes);
  while (end < text.size() && continues_utf8(text[end])) {
    --end;
  }
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end);
  return taken;
}

template <class T>
std::span<const T> take_tokens(std::span<const T>& tokens) {
  const std::span<const T> taken = tokens.first(std::min(tokens.size(), kMessageTokens));
  tokens = tokens.subspan(taken.size());
  return taken;
}

void fill(const TokenText& token, v1::TokenLogprob& out) {
  out.set_token_id(token.id);
  out.set_text(token.bytes);
  out.set_logprob(token.logprob);
}

v1::TokenLogprobs to_wire(const ChosenToken& token) {
  v1::TokenLogprobs message;
  fill(token.token, *message.mutable_chosen());
  if (token.first) {
    message.mutable_chosen()->clear_logprob();
  }
  for (const TokenText& other : token.top) {
    fill(other, *message.add_top());
  }
  if (token.rank > 0) {
    message.set_rank(token.rank);
  }
  return message;
}

void add_call(const CallPart& part, v1::GenerateResponse& out) {
  v1::ToolCallPart& call = *out.add_tool_calls();
  call.set_index(part.index);
  call.set_id(part.id);
  call.set_name(part.name);
  call.set_arguments(part.arguments);
}

v1::FinishReason reason_of(std::string_view reason) {
  if (reason == "stop") return v1::FINISH_REASON_STOP;
  if (reason == "length") return v1::FINISH_REASON_LENGTH;
  if (reason == "tool_calls") return v1::FINISH_REASON_TOOL_CALLS;
  TESSERA_CHECK(reason == kCancelled, "a sequence ends by one of four reasons");
  return v1::FINISH_REASON_CANCELLED;
}

void add_end(const ChoiceText& part, v1::GenerateResponse& out) {
  out.set_finish_reason(reason_of(part.finish_reason));
  if (!part.stop.empty()) {
    out.set_stop_text(part.stop);
  }
  if (part.stop_token) {
    out.set_stop_token_id(*part.stop_token);
  }
  out.set_context_full(part.context_full);
}

}  // namespace

bool shows_any(const ChoiceText& part) {
  return part.any() || !part.ids.empty() || !part.prompt.empty() || !part.prompt_ids.empty();
}

void add_messages(const ChoiceText& part, const std::string& request_id, const Tokenizer& tokenizer,
                  std::deque<v1::GenerateResponse>& out) {
  std::string_view text = part.text;
  std::string_view reasoning = part.reasoning;
  std::span<const ChosenToken> prompt = part.prompt;
  std::span<const int32_t> prompt_ids = part.prompt_ids;
  std::span<const int32_t> ids = part.ids;
  std::span<const ChosenToken> tokens = part.tokens;
  bool first = true;
  do {
    v1::GenerateResponse& message = out.emplace_back();
    message.set_request_id(request_id);
    message.set_index(part.index);
    message.set_text(std::string(take_text(text)));
    message.set_reasoning(std::string(take_text(reasoning)));
    for (const ChosenToken& token : take_tokens(prompt)) {
      *message.add_prompt() = to_wire(token);
    }
    for (const int32_t id : take_tokens(prompt_ids)) {
      v1::TokenLogprob& chosen = *message.add_prompt()->mutable_chosen();
      chosen.set_token_id(id);
      chosen.set_text(tokenizer.token_bytes(id, /*keep_special=*/true));
    }
    if (prompt.empty() && prompt_ids.empty()) {  // the prompt stands before all tokens
      const std::span<const int32_t> taken = take_tokens(ids);
      message.mutable_token_ids()->Add(taken.begin(), taken.end());
      for (const ChosenToken& token : take_tokens(tokens)) {
        *message.add_logprobs() = to_wire(token);
      }
    }
    if (std::exchange(first, false)) {
      for (const CallPart& call : part.calls) {
        add_call(call, message);
      }
    }
  } while (!text.empty() || !reasoning.empty() || !prompt.empty() || !prompt_ids.empty() ||
           !ids.empty() || !tokens.empty());
  if (!part.finish_reason.empty()) {
    add_end(part, out.back());
  }
}

v1::Usage to_wire(const Usage& usage) {
  v1::Usage message;
  message.set_prompt_tokens(static_cast<int32_t>(usage.prompt_tokens));
  message.set_completion_tokens(static_cast<int32_t>(usage.completion_tokens));
  message.set_cached_tokens(static_cast<int32_t>(usage.cached_tokens));
  *message.mutable_kv() = to_wire(usage.kv);
  return message;
}

}  // namespace tessera
