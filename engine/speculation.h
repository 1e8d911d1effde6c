#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/draft_model.h"
#include "engine/engine.h"
#include "engine/kv/kv_cache.h"
#include "engine/recent_answers.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"

namespace tessera {

// Speculation that changes no text. Sequences that decode draft their next tokens: from their own
// text (engine/draft.h), or else by a second model, or without one from the newest answers under
// their salt. A step computes drafted tokens together with the last known one, and chooses a token
// after each, with the draw that belongs to its place. The first choice that differs from the draft
// ends the run, and the tokens behind it are forgotten. Since the bits of a row do not depend on
// the other rows of a step, every choice is the one that a step of its own would make.
//
// A draft ends before the group of its first token closes. So no page is taken, and nothing is
// encoded, before the tokens are known to be right.
class Speculation {
 public:
  // kv: outlives this. model: null without a second model
  Speculation(KvCache& kv, std::unique_ptr<DraftModel> model, int32_t max_sequences);

  // Drafts tokens for all sequences that will decode.
  void draft(Sequences sequences);

  // Forgets the answers of other requests, with the prefix cache.
  void forget() { answers_.clear(); }

  // After the choices of a step: takes back the tokens that were not chosen, keeps answers that
  // have ended, and counts.
  void settle(const StepPlan& plan, Sequences sequences, EngineStats& counting);

 private:
  void draft_by_model(Sequences sequences);
  void draft_from_answers(Sequences sequences);
  void keep_answer(const Sequence& sequence);

  KvCache& kv_;
  const std::unique_ptr<DraftModel> model_;
  const int32_t max_sequences_;
  RecentAnswers answers_;
  std::vector<DraftWish> wishes_;   // [DraftModel::kSequences], of one step
  std::vector<Sequence*> wishing_;  // their sequences
};

}  // namespace tessera
