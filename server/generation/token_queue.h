#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "server/base/waker.h"
#include "server/generation/stream_room.h"

namespace tessera {

// Returns: about how many bytes a token with `top` log probabilities is as JSON.
constexpr std::size_t printed_token_bytes(std::size_t top) {
  return 32 + 128 * top;
}

// Queue of one sequence's events, from the engine thread to the answer's reader. Of a whole
// answer it holds all of them. Of a streamed one it holds as many as its room has bytes; then it
// drops new tokens, and its sequence is cancelled.
class TokenQueue final : public EventSink {
 public:
  struct Token {
    int32_t id = 0;
    float logprob = 0;
    std::vector<TokenLogprob> top;  // logprob, top and rank: only with top_logprobs
    int32_t rank = 0;               // 0: not known
  };
  struct Events {
    std::optional<PromptInCache> in_cache;  // in the first events that have tokens or an end
    std::vector<Token> prompt;              // all but its first token; only with prompt_logprobs
    std::vector<Token> tokens;
    std::optional<Finish> finish;  // only after the last token
    bool more = false;             // tokens are left
    bool cut_off = false;          // the tokens that follow were dropped
  };

  // `wake_for_tokens`: wake for every token, not only at the end. `room`: of a streamed answer.
  TokenQueue(std::shared_ptr<Waker> waker, bool wake_for_tokens,
             std::optional<StreamRoom> room = std::nullopt);

  // `cancel` is called once, on the engine thread or this one, if tokens are dropped.
  void when_cut_off(std::function<void()> cancel);

  void on_prompt_in_cache(const PromptInCache& prompt) override;
  void on_prompt_logprobs(const TokenLogprobs& logprobs) override;
  void on_logprobs(const TokenLogprobs& logprobs) override;
  void on_token(int32_t token) override;
  void on_finish(const Finish& finish) override;

  // Returns: about how many bytes the events that were not taken are as JSON.
  std::size_t printed_bytes() const;

  // Returns: the oldest events that were not taken, with `max_tokens` tokens at most.
  Events take(std::size_t max_tokens = std::numeric_limits<std::size_t>::max());

 private:
  const std::shared_ptr<Waker> waker_;
  const bool wake_for_tokens_;
  Token next_;                // log probabilities arrive before the id; engine thread only
  mutable std::mutex mutex_;  // guards the fields below
  std::optional<PromptInCache> in_cache_;
  std::vector<Token> prompt_;
  std::deque<Token> tokens_;
  std::optional<Finish> finish_;
  std::optional<StreamRoom> room_;
  bool cut_off_ = false;
  std::function<void()> cancel_;
};

}  // namespace tessera
