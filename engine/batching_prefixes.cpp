// The functions of BatchingEngine for shared prefixes.

#include <algorithm>
#include <utility>

#include "engine/batching_engine.h"

namespace tessera {
namespace {

size_t size(int64_t count) {
  return static_cast<size_t>(count);
}

}  // namespace

// Called before planning. If pages are short, blocks that only one sequence with a lossy policy
// uses are handed over to it. Its policy then compresses them before any sequence is preempted.
void BatchingEngine::relieve_pressure() {
  if (!kv_->prefixes().enabled()) {
    return;
  }
  kv_->prefixes().unpin(inputs_.now);
  const int64_t row_groups = 2;  // pages to keep available for each row of a running sequence
  const int64_t heads = kv_->planning().budget().heads;
  if (kv_->accounting().available_pages() >= counting_.running * heads * row_groups) {
    return;
  }
  for (const auto& sequence : sequences_) {
    const Sequence::Running* running = sequence->running();
    if (running != nullptr && sequence->kv_policy().is_lossy()) {
      kv_->prefixes().hand_over(running->slot);
    }
  }
}

Candidate BatchingEngine::candidate_of(size_t i) {
  Sequence& sequence = *sequences_[i];
  Candidate candidate = sequence.candidate();
  candidate.kv = demand_of(sequence);
  const bool follows =
      i > 0 && candidate.shareable > 0 && candidates_[i - 1].request == candidate.request;
  Sequence::Waiting* const waiting = sequence.waiting();
  if (const Sequence::Running* running = sequence.running()) {
    const int32_t forked = follows ? candidate.shareable : 0;
    candidate.pages =
        kv_->planning().own_pages(running->slot, forked) + candidate.kv.full_pages(forked);
  } else if (follows) {
    candidate.head_start = candidates_[i - 1].head_start;
  } else if (kv_->prefixes().enabled() && waiting != nullptr && sequence.uses_prefix_cache()) {
    KvMatch& match = waiting->match;
    match = kv_->prefixes().match(cache_prompt(sequence), sequence.max_cached_tokens(), match);
    candidate.stored = kv_->prefixes().tokens_of(match);
    candidate.kv.low_tokens = match.low_blocks * kv_->prefixes().block_tokens();
    candidate.matched = match.pages;
    candidate.locked = kv_->prefixes().unlocked_pages(match);
    candidate.head_start = head_start_of(candidate.stored);
  }
  return candidate;
}

// Sets Candidate::unlocked. Sequences lose their slots from the end, so each returns the cached
// pages that no running sequence before it uses.
void BatchingEngine::count_unlocked() {
  running_slots_.clear();
  for (auto sequence = sequences_.rbegin(); sequence != sequences_.rend(); ++sequence) {
    if (const Sequence::Running* running = (*sequence)->running()) {
      running_slots_.push_back(&running->slot);
    }
  }
  kv_->prefixes().count_unlocked_pages(running_slots_, unlocked_pages_);
  auto pages = unlocked_pages_.begin();
  for (auto candidate = candidates_.rbegin(); candidate != candidates_.rend(); ++candidate) {
    if (candidate->running) {
      candidate->unlocked = *pages++;
    }
  }
}

// Sets waits_for of a waiting candidate if an earlier candidate has the same next prefix block in
// its prompt and has not stored it yet. Only hashes are compared; a collision costs a wait.
void BatchingEngine::find_prefix_in_progress(size_t i) {
  const Sequence& sequence = *sequences_[i];
  Candidate& candidate = candidates_[i];
  const int32_t block = kv_->prefixes().block_tokens();
  if (block == 0 || sequence.waiting() == nullptr || !sequence.uses_prefix_cache() ||
      candidate.stored + block >= std::min(candidate.tokens, sequence.max_cached_tokens())) {
    return;
  }
  const int32_t next = candidate.stored / block;
  for (size_t j = 0; j < i; ++j) {
    const Sequence& other = *sequences_[j];
    const bool computes = other.uses_prefix_cache() && other.hashed_blocks() > next &&
                          candidates_[j].stored < (next + 1) * block &&
                          (next + 1) * block <= other.max_inserted_prompt_tokens() &&
                          other.request_id() != sequence.request_id();
    if (computes && other.path_hash(next) == sequence.path_hash(next)) {
      candidate.waits_for = static_cast<int32_t>(j);
      return;
    }
  }
}

// Attaches all matches before any swap-in, because a swap-in takes pages and may evict matched
// blocks.
void BatchingEngine::attach_admitted() {
  const auto now = options_.clock();
  for (const int32_t admitted : plan_.admitted) {
    Sequence& sequence = *sequences_[size(admitted)];
    if (sequence.waiting() == nullptr) {
      continue;
    }
    const bool forks = std::any_of(plan_.forks.begin(), plan_.forks.end(),
                                   [&](const auto& fork) { return fork.candidate == admitted; });
    const auto prompt = static_cast<int32_t>(sequence.prompt().size());
    KvSlot slot = kv_->open_slot(sequence.kv_policy(), prompt);
    int32_t cached = 0;  // tokens forked from a sibling do not count as cached
    if (!forks) {
      const KvMatch match = sequence.uses_prefix_cache() ? sequence.waiting()->match : KvMatch{};
      kv_->prefixes().attach(slot, match);
      cached = kv_->prefixes().tokens_of(match);
      counting_.cache_query_tokens += prompt;
      counting_.cache_hit_tokens += cached;
    }
    sequence.admit(std::move(slot), now);
    sequence.set_cached_tokens(cached);
  }
  for (const int32_t admitted : plan_.admitted) {
    Sequence& sequence = *sequences_[size(admitted)];
    if (const Sequence::SwappedOut* swapped = sequence.swapped_out()) {
      sequence.admit(kv_->swap_in(swapped->kv), now);
    }
  }
}

// Called on arrival, not at admission, so that the second of two requests that arrive together
// counts as recurring. All samples of a request count as one occurrence of its prompt.
void BatchingEngine::record_prompt(std::span<const std::unique_ptr<Sequence>> samples) {
  if (!kv_->prefixes().enabled() || samples.empty() || !samples.front()->uses_prefix_cache() ||
      !samples.front()->kv_policy().is_lossy()) {
    return;
  }
  cache_prompt(*samples.front());
  const int32_t seen = kv_->prefixes().record(samples.front()->path_hashes());
  for (const auto& sample : samples) {
    sample->mark_recurring(seen);
  }
}

// Inserts prompt blocks as soon as they are stored, so that other sequences need not compute them.
void BatchingEngine::insert_prompts() {
  if (!kv_->prefixes().enabled()) {
    return;
  }
  for (const StepPlan::Run& run : plan_.runs) {
    Sequence& sequence = sequence_of(run);
    const int32_t max = sequence.max_inserted_prompt_tokens();
    const int32_t before = std::min(sequence.stored() - run.count, max);
    const int32_t stored = std::min(sequence.stored(), max);
    if (sequence.uses_prefix_cache() &&
        stored / kv_->prefixes().block_tokens() > before / kv_->prefixes().block_tokens()) {
      kv_->prefixes().insert(slot_of(run.candidate), cache_prompt(sequence), stored, true);
    }
  }
}

void BatchingEngine::insert_stored(Sequence& sequence, const KvSlot& slot, bool replace_coarser) {
  if (!kv_->prefixes().enabled() || !sequence.uses_prefix_cache()) {
    return;
  }
  kv_->prefixes().insert(slot, cache_prompt(sequence),
                         std::min(sequence.stored(), sequence.max_inserted_tokens()),
                         replace_coarser);
  if (sequence.complete() && sequence.cache().pin) {
    kv_->prefixes().pin(slot, inputs_.now + sequence.cache().ttl);
  }
}

}  // namespace tessera
