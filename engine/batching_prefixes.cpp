// What of the engine has to do with what requests have in common.

#include <algorithm>
#include <utility>

#include "engine/batching_engine.h"

namespace tessera {
namespace {

size_t size(int64_t count) {
  return static_cast<size_t>(count);
}

}  // namespace

// Before anyone is preempted, sequences with a lossy policy get what only they use of the cache for
// themselves, so that their policies compress it.
void BatchingEngine::relieve_pressure() {
  if (kv_->prefixes() == nullptr) {
    return;
  }
  kv_->unpin(news_.now);
  const int64_t row_groups = 2;  // that each running sequence shall find room for
  const int64_t heads = kv_->budget().heads;
  if (kv_->available_pages() >= counting_.running * heads * row_groups) {
    return;
  }
  for (const auto& sequence : sequences_) {
    if (sequence->running() && sequence->kv_policy().is_lossy()) {
      kv_->hand_over(sequence->slot());
    }
  }
}

Candidate BatchingEngine::candidate_of(size_t i) {
  Sequence& sequence = *sequences_[i];
  Candidate candidate = sequence.candidate();
  candidate.kv = demand_of(sequence);
  const bool follows =
      i > 0 && candidate.shareable > 0 && candidates_[i - 1].request == candidate.request;
  if (sequence.running()) {
    const int32_t forked = follows ? candidate.shareable : 0;
    candidate.pages = kv_->own_pages(sequence.slot(), forked) + candidate.kv.full_pages(forked);
  } else if (follows) {
    candidate.head_start = candidates_[i - 1].head_start;
  } else if (kv_->prefixes() != nullptr && sequence.saved() == nullptr && sequence.uses_cache()) {
    KvMatch& match = sequence.match();
    match = kv_->match(cache_prompt(sequence), sequence.most_cached(), match);
    candidate.stored = kv_->tokens_of(match);
    candidate.kv.low_tokens = match.low_units * kv_->unit_tokens();
    candidate.matched = match.pages;
    candidate.locked = kv_->unlocked_pages(match);
    candidate.head_start = head_start_of(candidate.stored);
  }
  return candidate;
}

// Sequences lose their slots from the end, so what each leaves behind is what nobody before it
// uses.
void BatchingEngine::count_returned() {
  running_slots_.clear();
  for (auto sequence = sequences_.rbegin(); sequence != sequences_.rend(); ++sequence) {
    if ((*sequence)->running()) {
      running_slots_.push_back((*sequence)->slot());
    }
  }
  kv_->count_returned_pages(running_slots_, returned_pages_);
  auto pages = returned_pages_.begin();
  for (auto candidate = candidates_.rbegin(); candidate != candidates_.rend(); ++candidate) {
    if (candidate->running) {
      candidate->returned = *pages++;
    }
  }
}

// A sequence that waits and whose next unit one before it, or one that runs, has in its prompt too
// and has not stored yet. Hashes decide: to be wrong about it costs a wait.
void BatchingEngine::find_computing(size_t i) {
  const Sequence& sequence = *sequences_[i];
  Candidate& candidate = candidates_[i];
  const int32_t unit = kv_->unit_tokens();
  if (unit == 0 || sequence.running() || sequence.saved() != nullptr || !sequence.uses_cache() ||
      candidate.stored + unit >= std::min(candidate.tokens, sequence.most_cached())) {
    return;
  }
  const int32_t next = candidate.stored / unit;
  for (size_t j = 0; j < i; ++j) {
    const Sequence& other = *sequences_[j];
    const bool computes = other.uses_cache() && other.hashed_units() > next &&
                          candidates_[j].stored < (next + 1) * unit &&
                          (next + 1) * unit <= other.prompt_entered() &&
                          other.request_id() != sequence.request_id();
    if (computes && other.path_hash(next) == sequence.path_hash(next)) {
      candidate.waits_for = static_cast<int32_t>(j);
      return;
    }
  }
}

// First all who begin with what is in the cache, because whoever takes pages may evict.
void BatchingEngine::attach_admitted() {
  const auto now = options_.clock();
  for (const int32_t admitted : plan_.admitted) {
    Sequence& sequence = *sequences_[size(admitted)];
    if (sequence.saved() != nullptr) {
      continue;
    }
    const bool forks = std::any_of(plan_.forks.begin(), plan_.forks.end(),
                                   [&](const auto& fork) { return fork.candidate == admitted; });
    const auto prompt = static_cast<int32_t>(sequence.prompt().size());
    sequence.admit(kv_->open_slot(sequence.kv_policy(), prompt), now);
    if (forks) {
      sequence.begin_with(0);  // what it shares with its sibling it was given, not found
    } else {
      const KvMatch match = sequence.uses_cache() ? sequence.match() : KvMatch{};
      kv_->attach(sequence.slot(), match);
      sequence.begin_with(kv_->tokens_of(match));
      counting_.cache_query_tokens += prompt;
      counting_.cache_hit_tokens += kv_->tokens_of(match);
    }
    sequence.match() = {};
  }
  for (const int32_t admitted : plan_.admitted) {
    Sequence& sequence = *sequences_[size(admitted)];
    if (sequence.saved() != nullptr) {
      sequence.admit(kv_->restore(*sequence.saved()), now);
    }
  }
}

// Before their turn, so that of two that arrive together the second one knows of the first. The
// samples of a request are one sight of its prompt.
void BatchingEngine::see_prompt(std::span<const std::unique_ptr<Sequence>> samples) {
  if (kv_->prefixes() == nullptr || samples.empty() || !samples.front()->uses_cache() ||
      !samples.front()->kv_policy().is_lossy()) {
    return;
  }
  cache_prompt(*samples.front());
  const int32_t seen = kv_->see(samples.front()->path_hashes());
  for (const auto& sample : samples) {
    sample->recur(seen);
  }
}

// As soon as they are stored, so that others need not compute them.
void BatchingEngine::enter_prompts() {
  if (kv_->prefixes() == nullptr) {
    return;
  }
  for (const StepPlan::Run& run : plan_.runs) {
    Sequence& sequence = sequence_of(run);
    const int32_t most = sequence.prompt_entered();
    const int32_t before = std::min(sequence.stored() - run.count, most);
    const int32_t stored = std::min(sequence.stored(), most);
    if (sequence.uses_cache() && stored / kv_->unit_tokens() > before / kv_->unit_tokens()) {
      kv_->enter(sequence.slot(), cache_prompt(sequence), stored, true);
    }
  }
}

void BatchingEngine::leave_in_cache(Sequence& sequence, bool relabel) {
  if (kv_->prefixes() == nullptr || !sequence.uses_cache()) {
    return;
  }
  kv_->enter(sequence.slot(), cache_prompt(sequence),
             std::min(sequence.stored(), sequence.most_entered()), relabel);
  if (sequence.complete() && sequence.cache().pin) {
    kv_->pin(sequence.slot(), news_.now + sequence.cache().ttl);
  }
}

}  // namespace tessera
