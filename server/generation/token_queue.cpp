#include "server/generation/token_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tessera {
namespace {

// Memory of a token that waits.
std::size_t bytes_of(const TokenQueue::Token& token) {
  constexpr std::size_t kAllocation = 16;
  return sizeof(token) + kAllocation + token.top.size() * sizeof(TokenLogprob);
}

}  // namespace

TokenQueue::TokenQueue(std::shared_ptr<Waker> waker, bool wake_for_tokens,
                       std::optional<StreamRoom> room)
    : waker_(std::move(waker)), wake_for_tokens_(wake_for_tokens), room_(std::move(room)) {}

void TokenQueue::when_cut_off(std::function<void()> cancel) {
  {
    const std::lock_guard lock(mutex_);
    if (!cut_off_) {
      cancel_ = std::move(cancel);
      return;
    }
  }
  cancel();
}

void TokenQueue::on_prompt_in_cache(const PromptInCache& prompt) {
  const std::lock_guard lock(mutex_);
  in_cache_ = prompt;
}

void TokenQueue::on_prompt_logprobs(const TokenLogprobs& logprobs) {
  const TokenLogprob& token = logprobs.chosen;
  const std::lock_guard lock(mutex_);
  prompt_.push_back(
      {token.token, token.logprob, {logprobs.top.begin(), logprobs.top.end()}, logprobs.rank});
}

void TokenQueue::on_logprobs(const TokenLogprobs& logprobs) {
  next_.logprob = logprobs.chosen.logprob;
  next_.top.assign(logprobs.top.begin(), logprobs.top.end());
  next_.rank = logprobs.rank;
}

void TokenQueue::on_token(int32_t token) {
  next_.id = token;
  std::function<void()> cancel;
  {
    const std::lock_guard lock(mutex_);
    if (cut_off_) {
      return;
    }
    if (room_ && !room_->add(bytes_of(next_))) {
      cut_off_ = true;
      cancel = std::move(cancel_);
    } else {
      tokens_.push_back(std::exchange(next_, {}));
    }
  }
  if (cancel) {
    cancel();
  }
  if (wake_for_tokens_) {
    waker_->wake();
  }
}

void TokenQueue::on_finish(const Finish& finish) {
  {
    const std::lock_guard lock(mutex_);
    finish_ = finish;
  }
  waker_->wake();
}

std::size_t TokenQueue::printed_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const Token* first : {prompt_.empty() ? nullptr : &prompt_.front(),
                             tokens_.empty() ? nullptr : &tokens_.front()}) {
    bytes = std::max(bytes, first == nullptr ? 0 : printed_token_bytes(first->top.size()));
  }
  return (prompt_.size() + tokens_.size()) * bytes;
}

TokenQueue::Events TokenQueue::take(std::size_t max_tokens) {
  const std::lock_guard lock(mutex_);
  Events events;
  events.in_cache = std::exchange(in_cache_, std::nullopt);
  events.prompt.swap(prompt_);
  const auto end =
      tokens_.begin() + static_cast<std::ptrdiff_t>(std::min(max_tokens, tokens_.size()));
  for (auto token = tokens_.begin(); room_ && token != end; ++token) {
    room_->remove(bytes_of(*token));
  }
  events.tokens.assign(std::make_move_iterator(tokens_.begin()), std::make_move_iterator(end));
  tokens_.erase(tokens_.begin(), end);
  events.more = !tokens_.empty();
  if (!events.more) {
    events.finish = std::exchange(finish_, std::nullopt);
    events.cut_off = cut_off_;
  }
  return events;
}

}  // namespace tessera
