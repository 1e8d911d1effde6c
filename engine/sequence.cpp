#include "engine/sequence.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace tessera {

Sequence::Sequence(RequestId id, EngineRequest request, const Model& model)
    : id_(id),
      rank_(rank_of(request.priority, static_cast<int64_t>(id))),
      priority_(request.priority),
      tokens_(std::move(request.prompt)),
      prompt_tokens_(tokens_.size()),
      max_length_(std::min(prompt_tokens_ + static_cast<size_t>(request.max_tokens),
                           static_cast<size_t>(model.context))),
      stop_ids_(std::move(request.stop_ids)),
      sampling_(std::move(request.sampling)),
      sink_(std::move(request.sink)) {
  TESSERA_CHECK(prompt_tokens_ > 0 && prompt_tokens_ < max_length_,
                "a sequence starts with something and has room for more");
  tokens_.reserve(max_length_);
  if (!request.ignore_eos) {
    stop_ids_.insert(stop_ids_.end(), model.eos_ids.begin(), model.eos_ids.end());
  }
  unpublished_top_.reserve(static_cast<size_t>(sampling_.top_logprobs.value_or(0)));
}

Candidate Sequence::candidate() const {
  return {.rank = rank_,
          .priority = priority_,
          .tokens = static_cast<int32_t>(tokens_.size()),
          .stored = stored_,
          .pages = 0,
          .running = running()};
}

void Sequence::admit(int32_t slot) {
  TESSERA_CHECK(!running() && !ended() && stored_ == 0, "only a waiting sequence is admitted");
  slot_ = slot;
}

int32_t Sequence::give_up_slot() {
  TESSERA_CHECK(running(), "a sequence without a slot gives none up");
  stored_ = 0;
  return *std::exchange(slot_, std::nullopt);
}

void Sequence::store(int32_t count) {
  stored_ += count;
  TESSERA_CHECK(running() && std::cmp_less_equal(stored_, tokens_.size()),
                "more tokens are stored than are known");
}

bool Sequence::append(const Sampled& next) {
  TESSERA_CHECK(std::cmp_equal(stored_, tokens_.size()), "a token is chosen after all are stored");
  if (std::find(stop_ids_.begin(), stop_ids_.end(), next.token) != stop_ids_.end()) {
    end(FinishReason::stop);
    return false;
  }
  tokens_.push_back(next.token);
  unpublished_token_ = next.token;
  unpublished_logprob_ = next.logprobs.chosen;
  unpublished_top_.assign(next.logprobs.top.begin(), next.logprobs.top.end());
  if (tokens_.size() == max_length_) {
    end(FinishReason::length);
  }
  return true;
}

void Sequence::end(FinishReason reason, absl::Status status) {
  TESSERA_CHECK(!ended(), "a sequence ends once");
  finish_ = Finish{.reason = reason,
                   .status = std::move(status),
                   .prompt_tokens = static_cast<int32_t>(prompt_tokens_),
                   .cached_tokens = 0,
                   .completion_tokens = static_cast<int32_t>(generated().size())};
}

void Sequence::publish() {
  if (unpublished_token_.has_value()) {
    if (sampling_.top_logprobs.has_value()) {
      sink_->on_logprobs({unpublished_logprob_, unpublished_top_});
    }
    sink_->on_token(*std::exchange(unpublished_token_, std::nullopt));
  }
  if (ended()) {
    sink_->on_finish(*finish_);
  }
}

}  // namespace tessera
