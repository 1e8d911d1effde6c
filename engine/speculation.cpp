#include "engine/speculation.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace tessera {
namespace {

// Returns: tokens that the group of the last known token has room for behind it, without closing.
int32_t room_in_group(const Sequence& sequence) {
  return kKvGroup - 1 - sequence.tokens().size() % kKvGroup;
}

// Returns: true if its next step chooses a token.
bool decodes(const Sequence& sequence) {
  return sequence.state().running() != nullptr && !sequence.ended() &&
         sequence.state().stored() + 1 == sequence.tokens().size();
}

// Returns: the most tokens that a draft may have.
int32_t room_for_draft(const Sequence& sequence) {
  return decodes(sequence) && sequence.tokens().size() % kKvGroup != 0 ? room_in_group(sequence)
                                                                       : 0;
}

}  // namespace

Speculation::Speculation(KvCache& kv, std::unique_ptr<DraftModel> model, int32_t max_sequences)
    : kv_(kv), model_(std::move(model)), max_sequences_(max_sequences) {
  wishes_.reserve(DraftModel::kSequences);
  wishing_.reserve(DraftModel::kSequences);
}

void Speculation::draft(Sequences sequences) {
  for (const auto& sequence : sequences) {
    if (sequence->request().may_draft) {
      sequence->tokens().draft(room_for_draft(*sequence));
    }
  }
  if (model_ != nullptr) {
    draft_by_model(sequences);
  } else {
    draft_from_answers(sequences);
  }
}

void Speculation::draft_from_answers(Sequences sequences) {
  if (!kv_.prefixes().enabled()) return;
  for (const auto& sequence : sequences) {
    const SequenceRequest& request = sequence->request();
    SequenceTokens& tokens = sequence->tokens();
    if (!request.may_draft || !request.cache.use || !tokens.drafted().empty()) continue;
    const int32_t most = std::min(room_for_draft(*sequence), tokens.most_drafted());
    const int32_t wanted = most > 0 ? tokens.wish_for_draft(0) : 0;
    if (wanted == 0) continue;
    std::array<int32_t, kMostDrafted> drafted;
    const auto room = std::span(drafted).first(static_cast<size_t>(std::min(most, wanted)));
    const int32_t count = answers_.guess(request.cache.salt, tokens.known(), room);
    tokens.take_draft(room.first(static_cast<size_t>(count)));
  }
}

void Speculation::keep_answer(const Sequence& sequence) {
  if (sequence.ended() && sequence.request().cache.use && kv_.prefixes().enabled()) {
    answers_.add(sequence.request().cache.salt, sequence.tokens().generated());
  }
}

// The second model's steps are lost where the scheduler has no rows for drafts: in a full batch, or
// beside a prompt. Then it drafts nothing.
void Speculation::draft_by_model(Sequences sequences) {
  model_->forget_unless([&](RequestId id) {
    return std::ranges::any_of(sequences, [id](const auto& sequence) {
      return sequence->id() == id && sequence->state().running() != nullptr;
    });
  });
  const auto running = static_cast<int32_t>(std::ranges::count_if(
      sequences, [](const auto& sequence) { return sequence->state().running() != nullptr; }));
  const bool others_enter = running < max_sequences_ && std::cmp_less(running, sequences.size());
  const bool prompts = std::ranges::any_of(sequences, [](const auto& sequence) {
    return sequence->state().running() != nullptr && !decodes(*sequence);
  });
  if (running == 0 || running > DraftModel::kSequences || others_enter || prompts) return;
  wishes_.clear();
  wishing_.clear();
  for (const auto& sequence : sequences) {
    if (!sequence->request().may_draft || !sequence->tokens().drafted().empty()) continue;
    const int32_t most = std::min({room_for_draft(*sequence), sequence->tokens().most_drafted(),
                                   kDraftingTokens / running - 1});
    const int32_t wanted = most > 0 ? sequence->tokens().wish_for_draft(model_->step_cost()) : 0;
    if (wanted == 0) continue;
    wishes_.push_back({.id = sequence->id(),
                       .tokens = sequence->tokens().known(),
                       .most = std::min(most, wanted),
                       .left = sequence->tokens().most_drafted(),
                       .stop_ids = sequence->request().stop_ids,
                       .constraint = sequence->tokens().constraint()});
    wishing_.push_back(sequence.get());
  }
  model_->draft(wishes_);
  for (size_t i = 0; i < wishes_.size(); ++i) {
    const DraftWish& wish = wishes_[i];
    wishing_[i]->tokens().take_draft(
        std::span(wish.drafted).first(static_cast<size_t>(wish.count)));
  }
}

void Speculation::settle(const StepPlan& plan, Sequences sequences, EngineStats& counting) {
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *sequences[static_cast<size_t>(run.candidate)];
    keep_answer(sequence);
    if (run.drafted == 0) continue;
    const int32_t accepted = sequence.settle_draft(run.drafted);
    kv_.truncate(sequence.state().running()->slot, sequence.state().stored());
    ++counting.drafts;
    counting.drafted_tokens += run.drafted;
    counting.accepted_tokens += accepted;
    for (int32_t i = 0; i < accepted; ++i) {
      ++counting.accepted_at[static_cast<size_t>(i)];
    }
  }
}

}  // namespace tessera
