#include "engine/step_builder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/sampler.h"

namespace tessera {
namespace {

// Requires: the candidate runs in this step.
const KvSlot& slot_of(Sequences sequences, int32_t candidate) {
  return sequences[static_cast<size_t>(candidate)]->state().running()->slot;
}

}  // namespace

StepBuilder::StepBuilder(KvCache& kv, const SchedulerLimits& limits) : kv_(kv) {
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  const auto tokens = static_cast<size_t>(limits.max_step_tokens);
  reservations_.reserve(sequences);
  forks_.reserve(sequences);
  tokens_.reserve(tokens);
  positions_.reserve(tokens);
  spans_.reserve(sequences);
  scorings_.reserve(sequences);
  adapters_.reserve(sequences);
  slots_.reserve(sequences);
  logits_rows_.reserve(tokens);
  hidden_rows_.reserve(tokens);
}

void StepBuilder::reserve(const StepPlan& plan, Sequences sequences,
                          const std::optional<ReplayRun>& replay) {
  forks_.clear();
  for (const StepPlan::Fork& fork : plan.forks) {
    sequences[static_cast<size_t>(fork.candidate)]->state().store(fork.tokens);
    forks_.push_back({.source = slot_of(sequences, fork.source),
                      .target = slot_of(sequences, fork.candidate),
                      .tokens = fork.tokens});
  }
  kv_.fork(forks_);
  reservations_.clear();
  for (const StepPlan::Run& run : plan.runs) {
    const KvSlot& slot = slot_of(sequences, run.candidate);
    reservations_.push_back({slot, kv_.position(slot) + run.count});
  }
  if (replay.has_value()) {
    const auto count = static_cast<int32_t>(replay->tokens.size());
    reservations_.push_back({replay->slot, kv_.position(replay->slot) + count});
  }
  kv_.reserve(reservations_);
}

StepBuilder::Built StepBuilder::build(const StepPlan& plan, Sequences sequences,
                                      const std::optional<ReplayRun>& replay) {
  tokens_.clear();
  positions_.clear();
  spans_.clear();
  scorings_.clear();
  adapters_.clear();
  slots_.clear();
  logits_rows_.clear();
  hidden_rows_.clear();
  Built built;
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *sequences[static_cast<size_t>(run.candidate)];
    const bool decodes = sequence.state().stored() >= sequence.tokens().prompt_size() &&
                         run.samples && run.count - run.drafted == 1;
    add(run, sequence);
    if (kv_.replays(sequence.state().running()->slot)) {
      built.replayed += run.count;
    } else {
      built.prefilled += decodes ? 0 : run.count - run.drafted;
      sequence.state().store(run.count);
      TESSERA_CHECK(
          std::cmp_less_equal(sequence.state().stored(), sequence.tokens().with_drafted().size()),
          "more tokens are stored than are known or drafted");
    }
  }
  if (replay.has_value()) {
    add(*replay);
    built.replayed += std::ssize(replay->tokens);
  }
  if (std::none_of(scorings_.begin(), scorings_.end(),
                   [](const KvScoring& scoring) { return scoring.token_scores; })) {
    scorings_.clear();
  }
  return built;
}

void StepBuilder::add(const StepPlan::Run& run, const Sequence& sequence) {
  const KvSlot& slot = sequence.state().running()->slot;
  const bool replays = kv_.replays(slot);
  const int32_t first = kv_.position(slot) - run.count;
  scorings_.push_back(kv_.scoring(slot));
  slots_.push_back(&slot);
  if (!replays) {
    request_rows(run, sequence);
  }
  const int32_t repeated = replays ? first - sequence.request().kv.policy.section : first;
  append({.slot = slot.index(),
          .count = run.count,
          .context = first,
          .tiers = kv_.tiers(slot),
          .newest = sequence.request().kv.policy.newest_dense(),
          .prompt = sequence.tokens().prompt_size(),
          .read_tiles = sequence.request().kv.policy.read_tiles(first)},
         sequence.tokens().with_drafted().subspan(static_cast<size_t>(repeated),
                                                  static_cast<size_t>(run.count)));
  adapt(sequence);
}

// Notes the adapter of the last span's rows. Neighbours with one adapter are multiplied together.
void StepBuilder::adapt(const Sequence& sequence) {
  const LoraAdapter* const adapter = sequence.request().adapter.get();
  if (adapter == nullptr) return;
  const SequenceSpan& span = spans_.back();
  if (!adapters_.empty() && adapters_.back().adapter == adapter &&
      adapters_.back().first_row + adapters_.back().count == span.first_row) {
    adapters_.back().count += span.count;
  } else {
    adapters_.push_back({adapter, span.first_row, span.count});
  }
}

void StepBuilder::add(const ReplayRun& replay) {
  const KvSlot& slot = replay.slot;
  const auto count = static_cast<int32_t>(replay.tokens.size());
  scorings_.push_back(kv_.scoring(slot));
  append({.slot = slot.index(),
          .count = count,
          .context = kv_.position(slot) - count,
          .tiers = kv_.tiers(slot)},
         replay.tokens);
}

// Appends a sequence's tokens to the batch. Sets the span's first row.
void StepBuilder::append(const SequenceSpan& span, std::span<const int32_t> tokens) {
  spans_.push_back(span);
  spans_.back().first_row = static_cast<int32_t>(tokens_.size());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (int32_t i = 0; i < span.count; ++i) {
    positions_.push_back(span.context + i);
  }
}

// Adds the rows of logits and of hidden states that the run needs.
// Requires: its tokens are the next ones of the batch.
void StepBuilder::request_rows(const StepPlan::Run& run, const Sequence& sequence) {
  const auto first_row = static_cast<int32_t>(tokens_.size());
  for (int32_t i = 0; i < run.count; ++i) {
    const int32_t position = sequence.state().stored() + i;
    const bool chooses =
        run.samples && i + 1 >= run.count - run.drafted && !sequence.tokens().full();
    const bool seen =
        sequence.outbox().observes(position) || (chooses && Sampler::sees(sequence.sampling()));
    if (chooses || seen) {
      logits_rows_.push_back({first_row + i, run.candidate, position, chooses, seen});
    }
    if (sequence.outbox().pools(position)) {
      hidden_rows_.push_back({first_row + i, run.candidate, position});
    }
  }
}

}  // namespace tessera
