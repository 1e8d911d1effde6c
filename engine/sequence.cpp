#include "engine/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tessera {
namespace {

int32_t most_tokens(const EngineRequest& request, int32_t context) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  return static_cast<int32_t>(request.forced.empty()
                                  ? std::min<int64_t>(prompt + request.max_tokens, context)
                                  : prompt + std::ssize(request.forced));
}

SamplingParams sampling_of(const EngineRequest& request, size_t sample) {
  SamplingParams sampling = request.sampling;
  sampling.seed += sample;
  return sampling;
}

}  // namespace

Sequence::Sequence(RequestId request_id, size_t sample, const EngineRequest& request,
                   std::shared_ptr<const SequenceRequest> shared, const SequenceDefaults& defaults)
    : id_(request_id + sample),
      request_id_(request_id),
      request_(std::move(shared)),
      sampling_(sampling_of(request, sample)),
      tokens_(request.prompt, {most_tokens(request, defaults.context), request_->forced,
                               request.grammar == nullptr ? nullptr : request.grammar->begin()}),
      place_(request.tenant, request.priority, request_id),
      prefix_(*request_, tokens_.size(), most_tokens(request, defaults.context)),
      outbox_(request.sinks[sample], request, request_->may_draft ? kMostDrafted + 1 : 1,
              defaults.hidden) {
  TESSERA_CHECK(most_tokens(request, defaults.context) <= defaults.context,
                "a sequence fits the context");
}

void Sequence::admit(KvSlot slot, Time now) {
  TESSERA_CHECK(!ended(), "a sequence that has ended is admitted");
  admitted_ = admitted_.value_or(now);
  state_.admit(std::move(slot));
}

bool Sequence::append(const Sampled& next) {
  TESSERA_CHECK(state_.stored() >= tokens_.size(), "a token is chosen after all are stored");
  if (request_->forced.empty() &&
      std::binary_search(request_->stop_ids.begin(), request_->stop_ids.end(), next.token)) {
    end(FinishReason::stop);
    finish_->stop_token = next.token;
    return false;
  }
  tokens_.append(next.token);
  outbox_.add(next);
  if (tokens_.full()) {
    end(FinishReason::length);
  }
  return true;
}

int32_t Sequence::settle_draft(int32_t drafted) {
  TESSERA_CHECK(drafted > 0, "a draft of no tokens is settled");
  // The newest token is not stored, unless the step chose none that is kept.
  const bool kept_none =
      ended() && (finish_->reason == FinishReason::stop || finish_->reason == FinishReason::failed);
  const int32_t right = tokens_.size() - (kept_none ? 0 : 1);
  const int32_t accepted = drafted - (state_.stored() - right);
  state_.truncate(right);
  tokens_.settle_draft(drafted, accepted);
  return accepted;
}

void Sequence::end(FinishReason reason, absl::Status status) {
  TESSERA_CHECK(!ended(), "a sequence ends once");
  finish_ = Finish{.reason = reason,
                   .status = std::move(status),
                   .prompt_tokens = tokens_.prompt_size(),
                   .cached_tokens = prefix_.cached_tokens(),
                   .completion_tokens = tokens_.size() - tokens_.prompt_size()};
  if (state_.running() == nullptr) {
    state_.finish();
  }
}

bool Sequence::complete() const {
  return ended() &&
         (finish_->reason == FinishReason::stop || finish_->reason == FinishReason::length);
}

KvSlot Sequence::finish(const KvUsage& usage) {
  TESSERA_CHECK(ended(), "a sequence finishes after its end");
  return state_.finish(usage);
}

void Sequence::publish(Time now) {
  if (outbox_.has_tokens()) {
    prefill_time_ = prefill_time_.value_or(now - *admitted_);
  }
  if (outbox_.has_tokens() || ended()) {
    outbox_.send(prefix_.in_cache());
  }
  if (ended()) {
    finish_->kv = {.preset = request_->kv, .usage = state_.usage()};
    finish_->prefill_time = prefill_time_;
    if (admitted_.has_value()) {
      finish_->queue_time = *admitted_ - request_->submitted;
    }
    outbox_.send_finish(*finish_);
  }
}

}  // namespace tessera
