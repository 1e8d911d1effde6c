#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "server/http/handler.h"

namespace tessera {

// Queue of one sequence's events, from the engine thread to the connection's thread. Its size is
// bounded by the prompt's tokens and max_tokens, even if the client does not read.
class TokenQueue final : public EventSink {
 public:
  struct Token {
    int32_t id = 0;
    float logprob = 0;
    std::vector<TokenLogprob> top;  // logprob and top: only with top_logprobs
  };
  struct Events {
    std::vector<Token> prompt;  // all but its first token; only with prompt_logprobs
    std::vector<Token> tokens;
    std::optional<Finish> finish;
  };

  // `wake_for_tokens`: wake for every token, not only at the end.
  TokenQueue(std::shared_ptr<HttpWaker> waker, bool wake_for_tokens);

  void on_prompt_logprobs(const TokenLogprobs& logprobs) override;
  void on_logprobs(const TokenLogprobs& logprobs) override;
  void on_token(int32_t token) override;
  void on_finish(const Finish& finish) override;

  // Returns: the events since the last call.
  Events take();

 private:
  const std::shared_ptr<HttpWaker> waker_;
  const bool wake_for_tokens_;
  Token next_;  // log probabilities arrive before the id; engine thread only
  std::mutex mutex_;
  Events events_;
};

}  // namespace tessera
