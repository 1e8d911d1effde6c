#include "engine/sequence_outbox.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace tessera {

SequenceOutbox::SequenceOutbox(std::shared_ptr<EventSink> sink, const EngineRequest& request,
                               size_t most_tokens, int32_t hidden)
    : sink_(std::move(sink)),
      logits_(request.observe_logits),
      logprobs_(request.sampling.top_logprobs.has_value()),
      prompt_logprobs_(request.sampling.prompt_logprobs.has_value()
                           ? static_cast<int32_t>(request.prompt.size())
                           : 0),
      pool_(request.pooling.has_value()
                ? std::optional<HiddenPool>(std::in_place, *request.pooling,
                                            static_cast<int32_t>(request.prompt.size()), hidden)
                : std::nullopt),
      room_(most_tokens) {
  for (Token& token : room_) {
    token.top.reserve(static_cast<size_t>(request.sampling.top_logprobs.value_or(0)));
  }
}

bool SequenceOutbox::observes(int32_t position) const {
  return position >= next_observed_ && (logits_ || observes_prompt_logprobs(position));
}

bool SequenceOutbox::observes_prompt_logprobs(int32_t position) const {
  return position >= next_observed_ && position + 1 < prompt_logprobs_;
}

void SequenceOutbox::observe(int32_t position, std::span<const float> logits,
                             const TokenLogprobs& prompt_logprobs) {
  TESSERA_CHECK(position >= next_observed_, "a sink receives each position once");
  const bool of_prompt = observes_prompt_logprobs(position);
  next_observed_ = position + 1;
  if (logits_) {
    sink_->on_logits(position, logits);
  }
  if (of_prompt) {
    sink_->on_prompt_logprobs(prompt_logprobs);
  }
}

void SequenceOutbox::pool(int32_t position, std::span<const float> hidden) {
  pool_->add(position, hidden);
  if (pool_->complete()) {
    sink_->on_embedding(pool_->embedding());
  }
}

int32_t SequenceOutbox::first_unobserved() const {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  return std::min(logits_ || prompt_logprobs_ > 0 ? next_observed_ : kNone,
                  pool_.has_value() ? pool_->first_wanted() : kNone);
}

void SequenceOutbox::add(const Sampled& next) {
  Token& token = room_[tokens_++];
  token.token = next.token;
  token.logprob = next.logprobs.chosen;
  token.rank = next.logprobs.rank;
  token.top.assign(next.logprobs.top.begin(), next.logprobs.top.end());
}

void SequenceOutbox::send(const PromptInCache& prompt) {
  if (!told_) {
    sink_->on_prompt_in_cache(prompt);
    told_ = true;
  }
  for (const Token& next : std::span(room_).first(tokens_)) {
    if (logprobs_) {
      sink_->on_logprobs({next.logprob, next.top, next.rank});
    }
    sink_->on_token(next.token);
  }
  tokens_ = 0;
}

}  // namespace tessera
