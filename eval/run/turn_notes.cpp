#include "eval/run/turn_notes.h"

#include "base/check.h"
#include "engine/distribution.h"

namespace tessera {

TurnNotes::TurnNotes(const Job& job) : job_(job) {
  *job.result = {};
  if (job.keep_logits != nullptr) {
    job.keep_logits->clear();
  }
  for (const Turn& turn : job.trial->turns) {
    answered_.insert(answered_.end(), static_cast<size_t>(turn.asked), false);
    answered_.insert(answered_.end(), static_cast<size_t>(turn.answered), true);
  }
  TESSERA_CHECK(answered_.size() == job.trial->forced.size(), "turns are the forced tokens");
}

void TurnNotes::note(size_t place, std::span<const float> logits) {
  if (answered_[place]) {
    const TokenScore scored = score_token(logits, job_.trial->forced[place]);
    job_.result->logprobs.push_back(scored.logprob);
    job_.result->likeliest.push_back(scored.likeliest ? 1 : 0);
  }
  if (place == 0) {
    return;  // it comes from the prompt, before the policy acts
  }
  if (job_.keep_logits != nullptr) {
    job_.keep_logits->insert(job_.keep_logits->end(), logits.begin(), logits.end());
  }
  if (!job_.reference.empty()) {
    const auto reference = job_.reference.subspan((place - 1) * logits.size(), logits.size());
    job_.result->kl.push_back(static_cast<float>(kl_divergence(reference, logits)));
    job_.result->agrees.push_back(likeliest_token(reference) == likeliest_token(logits) ? 1 : 0);
  }
}

}  // namespace tessera
