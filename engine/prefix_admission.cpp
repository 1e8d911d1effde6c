#include "engine/prefix_admission.h"

#include <algorithm>
#include <utility>

namespace tessera {

PrefixAdmission::PrefixAdmission(KvCache& kv, BlockTiers* tiers, int32_t max_sequences)
    : kv_(kv), prefixes_(kv.prefixes()), restore_(kv, tiers, max_sequences) {}

void PrefixAdmission::relieve_pressure(Sequences sequences, int64_t running, PrefixPins::Time now) {
  if (!prefixes_.enabled()) {
    return;
  }
  prefixes_.unpin(now);
  const int64_t row_groups = 2;  // pages to keep available for each row of a running sequence
  const int64_t heads = kv_.planning().budget().heads;
  if (kv_.accounting().available_pages() >= running * heads * row_groups) {
    return;
  }
  for (const auto& sequence : sequences) {
    const SequenceState::Running* const state = sequence->state().running();
    if (state != nullptr && sequence->request().kv.policy.is_private()) {
      prefixes_.hand_over(state->slot);
    }
  }
}

// Samples behind the first one of their request share its prompt by forks.
void PrefixAdmission::restore(Sequences sequences, PrefixPins::Time now) {
  if (!restore_.enabled()) {
    return;
  }
  restore_.begin_step(sequences);
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    const bool follows = i > 0 && sequences[i - 1]->request_id() == sequence.request_id();
    if (sequence.state().waiting() == nullptr) {
      continue;
    }
    if (follows || !sequence.prefix().uses_cache()) {
      sequence.state().waiting()->in_stores.over = true;
    } else {
      restore_.advance(i, sequences, cache_prompt(sequence), now);
    }
  }
}

// Attaches all matches before any swap-in or copy of short blocks, because these take pages and may
// evict matched blocks.
PrefixAdmission::Admitted PrefixAdmission::admit(const StepPlan& plan, Sequences sequences,
                                                 PrefixPins::Time now) {
  Admitted counts;
  for (const int32_t admitted : plan.admitted) {
    Sequence& sequence = *sequences[static_cast<size_t>(admitted)];
    if (sequence.state().waiting() == nullptr) {
      continue;
    }
    const bool forks = std::any_of(plan.forks.begin(), plan.forks.end(),
                                   [&](const auto& fork) { return fork.candidate == admitted; });
    const auto prompt = sequence.tokens().prompt_size();
    KvSlot slot = kv_.open_slot(sequence.request().kv.policy, prompt, sequence.request().kv_floor);
    int32_t cached = 0;  // tokens forked from a sibling do not count as cached
    if (!forks) {
      const KvMatch match =
          sequence.prefix().uses_cache() ? sequence.state().waiting()->match : KvMatch{};
      prefixes_.attach(slot, match);
      prefixes_.renew(match, sequence.place().tenant().id, now);
      cached = prefixes_.tokens_of(match);
      counts.prompt_tokens += prompt;
      counts.cached_tokens += cached;
    }
    sequence.admit(std::move(slot), now);
    sequence.state().store(cached);
    sequence.prefix().note_cached(cached);
  }
  for (const int32_t admitted : plan.admitted) {
    Sequence& sequence = *sequences[static_cast<size_t>(admitted)];
    if (const SequenceState::SwappedOut* swapped = sequence.state().swapped_out()) {
      sequence.admit(kv_.swap_in(swapped->kv), now);
    } else {
      prefixes_.own_short_blocks(sequence.state().running()->slot);
    }
  }
  return counts;
}

// Called on arrival, not at admission, so that the second of two requests that arrive together
// counts as recurring. All samples of a request count as one occurrence of its prompt.
void PrefixAdmission::record_prompt(Sequences samples) {
  if (!prefixes_.enabled() || samples.empty() || !samples.front()->prefix().uses_cache() ||
      !samples.front()->request().kv.policy.is_private()) {
    return;
  }
  cache_prompt(*samples.front());
  const int32_t seen = prefixes_.record(samples.front()->prefix().path_hashes());
  for (const auto& sample : samples) {
    sample->prefix().mark_recurring(seen);
  }
}

void PrefixAdmission::insert_sections(const StepPlan& plan, Sequences sequences) {
  if (!prefixes_.enabled()) {
    return;
  }
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *sequences[static_cast<size_t>(run.candidate)];
    if (sequence.request().kv.policy.replays() && sequence.prefix().uses_cache()) {
      prefixes_.insert(sequence.state().running()->slot, cache_prompt(sequence),
                       sequence.state().stored(), true);
    }
  }
}

// Inserts prompt blocks as soon as they are stored, so that other sequences need not compute them.
void PrefixAdmission::insert_prompts(const StepPlan& plan, Sequences sequences) {
  if (!prefixes_.enabled()) {
    return;
  }
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *sequences[static_cast<size_t>(run.candidate)];
    const int32_t max = sequence.prefix().max_inserted_prompt_tokens();
    const int32_t before = std::min(sequence.state().stored() - run.count, max);
    const int32_t stored = std::min(sequence.state().stored(), max);
    if (sequence.prefix().uses_cache() &&
        stored / prefixes_.block_tokens() > before / prefixes_.block_tokens()) {
      prefixes_.insert(sequence.state().running()->slot, cache_prompt(sequence), stored, true);
    }
  }
}

void PrefixAdmission::insert_stored(Sequence& sequence, const KvSlot& slot, bool replace_coarser) {
  if (!prefixes_.enabled() || !sequence.prefix().uses_cache()) {
    return;
  }
  const KvPrompt prompt = cache_prompt(sequence);
  const int32_t tokens =
      std::min(sequence.state().stored(), sequence.prefix().max_inserted_tokens());
  prefixes_.insert(slot, prompt, tokens, replace_coarser);
  prefixes_.insert_short_blocks(slot, prompt, tokens, replace_coarser);
}

}  // namespace tessera
