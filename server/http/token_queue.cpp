#include "server/http/token_queue.h"

#include <utility>

namespace tessera {

TokenQueue::TokenQueue(std::shared_ptr<HttpWaker> waker, bool wake_for_tokens)
    : waker_(std::move(waker)), wake_for_tokens_(wake_for_tokens) {}

void TokenQueue::on_prompt_logprobs(const TokenLogprobs& logprobs) {
  const TokenLogprob& token = logprobs.chosen;
  const std::lock_guard lock(mutex_);
  events_.prompt.push_back(
      {token.token, token.logprob, {logprobs.top.begin(), logprobs.top.end()}});
}

void TokenQueue::on_logprobs(const TokenLogprobs& logprobs) {
  next_.logprob = logprobs.chosen.logprob;
  next_.top.assign(logprobs.top.begin(), logprobs.top.end());
}

void TokenQueue::on_token(int32_t token) {
  next_.id = token;
  {
    const std::lock_guard lock(mutex_);
    events_.tokens.push_back(std::exchange(next_, {}));
  }
  if (wake_for_tokens_) {
    waker_->wake();
  }
}

void TokenQueue::on_finish(const Finish& finish) {
  {
    const std::lock_guard lock(mutex_);
    events_.finish = finish;
  }
  waker_->wake();
}

TokenQueue::Events TokenQueue::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

}  // namespace tessera
