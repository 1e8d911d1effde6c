#include "engine/sequence_tokens.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

SequenceTokens::SequenceTokens(const std::vector<int32_t>& prompt, Limits limits)
    : limits_(std::move(limits)), prompt_(static_cast<int32_t>(prompt.size())), known_(prompt_) {
  TESSERA_CHECK(prompt_ > 0 && prompt_ <= limits_.most, "a sequence has a prompt within its limit");
  tokens_.reserve(at(limits_.most));
  tokens_ = prompt;
}

std::optional<int32_t> SequenceTokens::forced() const {
  return limits_.forced.empty() ? std::nullopt : std::optional(limits_.forced[generated().size()]);
}

void SequenceTokens::append(int32_t token) {
  refused_ = !drafted().empty() && drafted().front() != token;
  if (drafted().empty() || refused_) {
    tokens_.resize(at(known_));
    tokens_.push_back(token);
  }
  ++known_;
  if (constraint() != nullptr) {
    constraint()->accept(token);
  }
}

void SequenceTokens::draft(int32_t most) {
  tokens_.resize(at(known_));
  refused_ = false;
  drafted_by_model_ = false;
  int32_t drafted[kMostDrafted];
  const int32_t wanted = std::clamp(std::min(most, most_drafted()), 0, kMostDrafted);
  const int32_t count = own_draft_.guess(tokens_, std::span(drafted).first(at(wanted)));
  tokens_.insert(tokens_.end(), drafted, drafted + count);
}

int32_t SequenceTokens::wish_for_draft(float step_cost) {
  const int32_t wanted = length_of_model_.choose(step_cost);
  if (wanted == 0) {
    length_of_model_.rest();
  }
  return wanted;
}

void SequenceTokens::take_draft(std::span<const int32_t> drafted) {
  TESSERA_CHECK(tokens_.size() == at(known_) && std::ssize(drafted) <= std::max(0, most_drafted()),
                "a draft in the place of another, or behind the end");
  tokens_.insert(tokens_.end(), drafted.begin(), drafted.end());
  drafted_by_model_ = true;
}

void SequenceTokens::settle_draft(int32_t drafted, int32_t accepted) {
  tokens_.resize(at(known_));
  if (drafted_by_model_) {
    length_of_model_.learn(drafted, accepted);
  } else {
    own_draft_.learn(drafted, accepted);
  }
}

}  // namespace tessera
