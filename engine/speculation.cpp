#include "engine/speculation.h"

#include <algorithm>

namespace tessera {
namespace {

// Returns: tokens that the group of the last known token has room for behind it, without closing.
int32_t room_in_group(const Sequence& sequence) {
  return kKvGroup - 1 - static_cast<int32_t>(sequence.tokens().size() % kKvGroup);
}

}  // namespace

void Speculation::draft(Sequences sequences) const {
  for (const auto& sequence : sequences) {
    if (!sequence->may_draft()) continue;
    const bool decodes = sequence->running() != nullptr && !sequence->ended() &&
                         std::cmp_equal(sequence->stored() + 1, sequence->tokens().size());
    sequence->draft(decodes && sequence->tokens().size() % kKvGroup != 0 ? room_in_group(*sequence)
                                                                         : 0);
  }
}

void Speculation::settle(const StepPlan& plan, Sequences sequences, EngineStats& counting) {
  for (const StepPlan::Run& run : plan.runs) {
    if (run.drafted == 0) continue;
    Sequence& sequence = *sequences[static_cast<size_t>(run.candidate)];
    const int32_t accepted = sequence.settle_draft(run.drafted);
    kv_.truncate(sequence.running()->slot, sequence.stored());
    ++counting.drafts;
    counting.drafted_tokens += run.drafted;
    counting.accepted_tokens += accepted;
    for (int32_t i = 0; i < accepted; ++i) {
      ++counting.accepted_at[static_cast<size_t>(i)];
    }
  }
}

}  // namespace tessera
