#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "server/http/handler.h"

namespace tessera {

// Carries one sequence's events from the engine's thread to its connection's. Never larger than
// the tokens the request has and may have, whether or not the client reads.
class TokenQueue final : public EventSink {
 public:
  struct Token {
    int32_t id = 0;
    float logprob = 0;
    std::vector<TokenLogprob> top;  // both only for requests with top_logprobs
  };
  struct Events {
    std::vector<Token> prompt;  // but its first; only for requests with prompt_logprobs
    std::vector<Token> tokens;
    std::optional<Finish> finish;
  };

  // `wake_for_tokens`: tokens matter one by one, not only the end.
  TokenQueue(std::shared_ptr<HttpWaker> waker, bool wake_for_tokens);

  void on_prompt_logprobs(const TokenLogprobs& logprobs) override;
  void on_logprobs(const TokenLogprobs& logprobs) override;
  void on_token(int32_t token) override;
  void on_finish(const Finish& finish) override;

  // What came since the last call.
  Events take();

 private:
  const std::shared_ptr<HttpWaker> waker_;
  const bool wake_for_tokens_;
  Token next_;  // its log probabilities come first; engine's thread only
  std::mutex mutex_;
  Events events_;
};

}  // namespace tessera
