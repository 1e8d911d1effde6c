#include "engine/prefix_admission.h"

#include <algorithm>
#include <utility>

namespace tessera {

PrefixAdmission::PrefixAdmission(KvCache& kv, BlockTiers* tiers, int32_t max_sequences,
                                 int32_t max_inside)
    : kv_(kv), prefixes_(kv.prefixes()), restore_(kv, tiers, max_sequences) {
  candidates_.reserve(static_cast<size_t>(max_inside));
  first_hashes_.reserve(static_cast<size_t>(max_inside));
  running_slots_.reserve(static_cast<size_t>(max_sequences));
  unlocked_pages_.reserve(static_cast<size_t>(max_sequences));
}

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
    const Sequence::Running* const state = sequence->running();
    if (state != nullptr && sequence->kv_policy().is_private()) {
      prefixes_.hand_over(state->slot);
    }
  }
}

std::span<const Candidate> PrefixAdmission::candidates(Sequences sequences) {
  candidates_.clear();
  first_hashes_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    candidates_.push_back(candidate_of(i, sequences));
    first_hashes_.push_back(sequences[i]->hashed_blocks() > 0 ? sequences[i]->path_hash(0) : 0);
    find_prefix_in_progress(i, sequences);
  }
  count_unlocked(sequences);
  return candidates_;
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
    if (sequence.waiting() == nullptr) {
      continue;
    }
    if (follows || !sequence.uses_prefix_cache()) {
      sequence.waiting()->in_stores.over = true;
    } else {
      restore_.advance(i, sequences, cache_prompt(sequence), now);
    }
  }
}

KvDemand PrefixAdmission::demand_of(const Sequence& sequence) const {
  const KvPlanning& planning = kv_.planning();
  if (const Sequence::Running* running = sequence.running()) {
    return planning.demand(running->slot);
  }
  return sequence.swapped_out() != nullptr
             ? planning.demand(sequence.swapped_out()->kv)
             : planning.demand(sequence.kv_policy(),
                               static_cast<int32_t>(sequence.prompt().size()));
}

Candidate PrefixAdmission::candidate_of(size_t i, Sequences sequences) const {
  Sequence& sequence = *sequences[i];
  Candidate candidate = sequence.candidate();
  candidate.kv = demand_of(sequence);
  const bool follows =
      i > 0 && candidate.shareable > 0 && candidates_[i - 1].request == candidate.request;
  Sequence::Waiting* const waiting = sequence.waiting();
  if (const Sequence::Running* running = sequence.running()) {
    const int32_t forked = follows ? candidate.shareable : 0;
    candidate.pages =
        kv_.planning().own_pages(running->slot, forked) + candidate.kv.full_pages(forked);
    candidate.tightening = kv_.planning().tightening(running->slot);
  } else if (follows && first_sample(i).forkable()) {
    candidate.head_start = candidates_[i - 1].head_start;
  } else if (prefixes_.enabled() && waiting != nullptr && sequence.uses_prefix_cache()) {
    candidate.restoring = waiting->in_stores.held;
    KvMatch& match = waiting->match;
    match = prefixes_.match(cache_prompt(sequence), sequence.max_cached_tokens(), match);
    set_match(sequence, match, candidate);
    // Short blocks take their pages twice, so a sequence that fits the arena may not fit with them.
    const int64_t taken = candidate.kv.swap_in_pages + candidate.locked +
                          candidate.kv.growth_to(candidate.stored, candidate.tokens);
    if (match.short_blocks > 0 && taken > kv_.accounting().available_pages()) {
      match = prefixes_.whole_blocks_of(match);
      set_match(sequence, match, candidate);
    }
  }
  return candidate;
}

// Requires: the candidates before `i` are described, and `i` follows one of its request.
const Candidate& PrefixAdmission::first_sample(size_t i) const {
  const int64_t request = candidates_[i - 1].request;
  while (i > 1 && candidates_[i - 2].request == request) {
    --i;
  }
  return candidates_[i - 1];
}

void PrefixAdmission::set_match(Sequence& sequence, const KvMatch& match,
                                Candidate& candidate) const {
  candidate.stored = prefixes_.tokens_of(match);
  sequence.set_matched(candidate.stored);
  candidate.kv.low_tokens = match.low_blocks * prefixes_.block_tokens();
  candidate.kv.swap_in_pages = match.short_pages;
  if (sequence.kv_policy().replays()) {
    candidate.kv.sections.compressed = prefixes_.whole_tokens_of(match);
  } else {
    candidate.kv.sections = prefixes_.sections_of(match);
  }
  candidate.matched = match.pages;
  candidate.locked = prefixes_.unlocked_pages(match);
  candidate.head_start = head_start_of(candidate.stored);
}

// Sets Candidate::unlocked. Sequences lose their slots from the end, so each returns the cached
// pages that no running sequence before it uses.
void PrefixAdmission::count_unlocked(Sequences sequences) {
  running_slots_.clear();
  for (auto sequence = sequences.rbegin(); sequence != sequences.rend(); ++sequence) {
    if (const Sequence::Running* running = (*sequence)->running()) {
      running_slots_.push_back(&running->slot);
    }
  }
  prefixes_.count_unlocked_pages(running_slots_, unlocked_pages_);
  auto pages = unlocked_pages_.begin();
  for (auto candidate = candidates_.rbegin(); candidate != candidates_.rend(); ++candidate) {
    if (candidate->running) {
      candidate->unlocked = *pages++;
    }
  }
}

// Sets waits_for of a waiting candidate if an earlier candidate has the same next prefix block in
// its prompt and has not stored it yet. Only hashes are compared; a collision costs a wait. With a
// long queue most pairs differ in their first block: one array tells that, without their sequences.
void PrefixAdmission::find_prefix_in_progress(size_t i, Sequences sequences) {
  const Sequence& sequence = *sequences[i];
  Candidate& candidate = candidates_[i];
  const int32_t block = prefixes_.block_tokens();
  if (block == 0 || sequence.waiting() == nullptr || !sequence.uses_prefix_cache() ||
      candidate.stored + block >= std::min(candidate.tokens, sequence.max_cached_tokens())) {
    return;
  }
  const int32_t next = candidate.stored / block;
  for (size_t j = 0; j < i; ++j) {
    if (first_hashes_[j] != first_hashes_[i]) {
      continue;
    }
    const Sequence& other = *sequences[j];
    const int32_t end = (next + 1) * block;
    const KvSections& sections = candidates_[j].kv.sections;
    const bool replays = other.kv_policy().replays();
    const bool stores =
        replays ? sections.compressed < end && end <= sections.end : candidates_[j].stored < end;
    // Samples of one request share by forks, except under a policy that replays.
    const bool shares = replays || other.request_id() != sequence.request_id();
    const bool computes = other.uses_prefix_cache() && other.hashed_blocks() > next && stores &&
                          end <= other.max_inserted_prompt_tokens() && shares;
    if (computes && other.path_hash(next) == sequence.path_hash(next)) {
      candidate.waits_for = static_cast<int32_t>(j);
      return;
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
    if (sequence.waiting() == nullptr) {
      continue;
    }
    const bool forks = std::any_of(plan.forks.begin(), plan.forks.end(),
                                   [&](const auto& fork) { return fork.candidate == admitted; });
    const auto prompt = static_cast<int32_t>(sequence.prompt().size());
    KvSlot slot = kv_.open_slot(sequence.kv_policy(), prompt, sequence.kv_floor());
    int32_t cached = 0;  // tokens forked from a sibling do not count as cached
    if (!forks) {
      const KvMatch match = sequence.uses_prefix_cache() ? sequence.waiting()->match : KvMatch{};
      prefixes_.attach(slot, match);
      prefixes_.renew(match, sequence.tenant().id, now);
      cached = prefixes_.tokens_of(match);
      counts.prompt_tokens += prompt;
      counts.cached_tokens += cached;
    }
    sequence.admit(std::move(slot), now);
    sequence.set_cached_tokens(cached);
  }
  for (const int32_t admitted : plan.admitted) {
    Sequence& sequence = *sequences[static_cast<size_t>(admitted)];
    if (const Sequence::SwappedOut* swapped = sequence.swapped_out()) {
      sequence.admit(kv_.swap_in(swapped->kv), now);
    } else {
      prefixes_.own_short_blocks(sequence.running()->slot);
    }
  }
  return counts;
}

// Called on arrival, not at admission, so that the second of two requests that arrive together
// counts as recurring. All samples of a request count as one occurrence of its prompt.
void PrefixAdmission::record_prompt(Sequences samples) {
  if (!prefixes_.enabled() || samples.empty() || !samples.front()->uses_prefix_cache() ||
      !samples.front()->kv_policy().is_private()) {
    return;
  }
  cache_prompt(*samples.front());
  const int32_t seen = prefixes_.record(samples.front()->path_hashes());
  for (const auto& sample : samples) {
    sample->mark_recurring(seen);
  }
}

void PrefixAdmission::insert_sections(const StepPlan& plan, Sequences sequences) {
  if (!prefixes_.enabled()) {
    return;
  }
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *sequences[static_cast<size_t>(run.candidate)];
    if (sequence.kv_policy().replays() && sequence.uses_prefix_cache()) {
      prefixes_.insert(sequence.running()->slot, cache_prompt(sequence), sequence.stored(), true);
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
    const int32_t max = sequence.max_inserted_prompt_tokens();
    const int32_t before = std::min(sequence.stored() - run.count, max);
    const int32_t stored = std::min(sequence.stored(), max);
    if (sequence.uses_prefix_cache() &&
        stored / prefixes_.block_tokens() > before / prefixes_.block_tokens()) {
      prefixes_.insert(sequence.running()->slot, cache_prompt(sequence), stored, true);
    }
  }
}

void PrefixAdmission::insert_stored(Sequence& sequence, const KvSlot& slot, bool replace_coarser) {
  if (!prefixes_.enabled() || !sequence.uses_prefix_cache()) {
    return;
  }
  const KvPrompt prompt = cache_prompt(sequence);
  const int32_t tokens = std::min(sequence.stored(), sequence.max_inserted_tokens());
  prefixes_.insert(slot, prompt, tokens, replace_coarser);
  prefixes_.insert_short_blocks(slot, prompt, tokens, replace_coarser);
}

}  // namespace tessera
