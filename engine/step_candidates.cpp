#include "engine/step_candidates.h"

#include <algorithm>
#include <limits>

#include "engine/prefix_wishes.h"

namespace tessera {
namespace {

KvDemand demand_of(const Sequence& sequence, const KvPlanning& planning) {
  if (const SequenceState::Running* running = sequence.state().running()) {
    return planning.demand(running->slot);
  }
  return sequence.state().swapped_out() != nullptr
             ? planning.demand(sequence.state().swapped_out()->kv)
             : planning.demand(sequence.request().kv.policy, sequence.tokens().prompt_size());
}

// The pages that a running sequence holds, and those that tightening it would free.
void add_slot(const KvSlot& slot, const KvCache& kv, int32_t forked, Candidate& candidate) {
  candidate.pages = kv.planning().own_pages(slot, forked) + candidate.kv.full_pages(forked);
  candidate.tightening = kv.planning().tightening(slot);
}

// The match with which a waiting sequence will begin.
void add_match(const Sequence& sequence, const KvMatch& match, const SharedPrefixes& prefixes,
               Candidate& candidate) {
  candidate.stored = prefixes.tokens_of(match);
  candidate.kv.low_tokens = match.low.blocks * prefixes.block_tokens();
  candidate.kv.swap_in_pages = match.short_ends.pages;
  if (sequence.request().kv.policy.replays()) {
    candidate.kv.sections.compressed = prefixes.whole_tokens_of(match);
  } else {
    candidate.kv.sections = prefixes.sections_of(match);
  }
  candidate.prefix.matched = match.pages();
  candidate.prefix.locked = prefixes.unlocked_pages(match);
  candidate.prefix.head_start = head_start_of(candidate.stored);
}

}  // namespace

Candidate candidate_of(const Sequence& sequence, const KvCache& kv, const Candidate* first_sample) {
  const SequenceTokens& tokens = sequence.tokens();
  const SequenceRequest& request = sequence.request();
  constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  Candidate candidate{.turn = sequence.place().turn(),
                      .tokens = tokens.size(),
                      .stored = sequence.state().stored(),
                      .drafted = static_cast<int32_t>(tokens.drafted().size()),
                      .running = sequence.state().running() != nullptr,
                      .kv = demand_of(sequence, kv.planning()),
                      .request = static_cast<int64_t>(sequence.request_id()),
                      .shareable = request.shareable,
                      .one_by_one = request.kv.policy.one_by_one() ? tokens.prompt_size() : kNever};
  if (const SequenceState::Running* running = sequence.state().running()) {
    add_slot(running->slot, kv, first_sample != nullptr ? candidate.shareable : 0, candidate);
  } else if (first_sample != nullptr && first_sample->forkable()) {
    candidate.prefix.head_start = first_sample->prefix.head_start;  // it begins as a fork
  } else if (const SequenceState::Waiting* waiting = sequence.state().waiting()) {
    candidate.prefix.restoring = waiting->in_stores.held;
    add_match(sequence, waiting->match, kv.prefixes(), candidate);
  }
  return candidate;
}

StepCandidates::StepCandidates(KvCache& kv, int32_t max_sequences, int32_t max_inside)
    : kv_(kv), prefixes_(kv.prefixes()) {
  candidates_.reserve(static_cast<size_t>(max_inside));
  first_hashes_.reserve(static_cast<size_t>(max_inside));
  running_slots_.reserve(static_cast<size_t>(max_sequences));
  unlocked_pages_.reserve(static_cast<size_t>(max_sequences));
}

std::span<const Candidate> StepCandidates::of(Sequences sequences) {
  candidates_.clear();
  first_hashes_.clear();
  size_t first = 0;  // sample of the request
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    const bool follows = i > 0 && sequence.request().shareable > 0 &&
                         sequences[i - 1]->request_id() == sequence.request_id();
    first = follows ? first : i;
    const Candidate* const first_sample = follows ? &candidates_[first] : nullptr;
    look_up(sequence, first_sample);
    candidates_.push_back(candidate_of(sequence, kv_, first_sample));
    first_hashes_.push_back(sequence.prefix().hashed_blocks() > 0 ? sequence.prefix().path_hash(0)
                                                                  : 0);
    candidates_[i].prefix.waits_for = prefix_in_progress(i, sequences);
  }
  count_unlocked(sequences);
  return candidates_;
}

// Updates the match of a waiting sequence, unless it begins as a fork of its first sample.
void StepCandidates::look_up(Sequence& sequence, const Candidate* first_sample) {
  SequenceState::Waiting* const waiting = sequence.state().waiting();
  const bool forks = first_sample != nullptr && first_sample->forkable();
  if (waiting == nullptr || forks || !prefixes_.enabled() || !sequence.prefix().uses_cache()) {
    return;
  }
  KvMatch& match = waiting->match;
  match = prefixes_.match(cache_prompt_of(sequence, kv_), sequence.max_cached_tokens(), match);
  if (match.short_ends.blocks > 0) {
    // Short blocks take their pages twice, so a sequence that fits the arena may not fit with them.
    const Candidate with_short = candidate_of(sequence, kv_, first_sample);
    const int64_t taken = with_short.kv.swap_in_pages + with_short.prefix.locked +
                          with_short.kv.growth_to(with_short.stored, with_short.tokens);
    if (taken > kv_.accounting().available_pages()) {
      match = prefixes_.whole_blocks_of(match);
    }
  }
  sequence.prefix().note_match(prefixes_.tokens_of(match));
}

// Sets CachedPrefix::unlocked. Sequences lose their slots from the end, so each returns the cached
// pages that no running sequence before it uses.
void StepCandidates::count_unlocked(Sequences sequences) {
  running_slots_.clear();
  for (auto sequence = sequences.rbegin(); sequence != sequences.rend(); ++sequence) {
    if (const SequenceState::Running* running = (*sequence)->state().running()) {
      running_slots_.push_back(&running->slot);
    }
  }
  prefixes_.count_unlocked_pages(running_slots_, unlocked_pages_);
  auto pages = unlocked_pages_.begin();
  for (auto candidate = candidates_.rbegin(); candidate != candidates_.rend(); ++candidate) {
    if (candidate->running) {
      candidate->prefix.unlocked = *pages++;
    }
  }
}

// Returns: the earlier candidate that has the same next prefix block as waiting candidate `i` in
// its prompt, and has not stored it yet; -1 if there is none. Only hashes are compared; a collision
// costs a wait. With a long queue most pairs differ in their first block: one array tells that,
// without their sequences.
int32_t StepCandidates::prefix_in_progress(size_t i, Sequences sequences) const {
  const Sequence& sequence = *sequences[i];
  const Candidate& candidate = candidates_[i];
  const int32_t block = prefixes_.block_tokens();
  if (block == 0 || sequence.state().waiting() == nullptr || !sequence.prefix().uses_cache() ||
      candidate.stored + block >= std::min(candidate.tokens, sequence.max_cached_tokens())) {
    return -1;
  }
  const int32_t next = candidate.stored / block;
  for (size_t j = 0; j < i; ++j) {
    if (first_hashes_[j] != first_hashes_[i]) {
      continue;
    }
    const Sequence& other = *sequences[j];
    const int32_t end = (next + 1) * block;
    const KvSections& sections = candidates_[j].kv.sections;
    const bool replays = other.request().kv.policy.replays();
    const bool stores =
        replays ? sections.compressed < end && end <= sections.end : candidates_[j].stored < end;
    // Samples of one request share by forks, except under a policy that replays.
    const bool shares = replays || other.request_id() != sequence.request_id();
    const bool computes = other.prefix().uses_cache() && other.prefix().hashed_blocks() > next &&
                          stores && end <= other.prefix().max_inserted_prompt_tokens() && shares;
    if (computes && other.prefix().path_hash(next) == sequence.prefix().path_hash(next)) {
      return static_cast<int32_t>(j);
    }
  }
  return -1;
}

}  // namespace tessera
