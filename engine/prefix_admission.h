#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_cache.h"
#include "engine/prefix_restore.h"
#include "engine/prefix_wishes.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace tessera {

// Admits sequences with their cached prefixes: describes sequences to the scheduler, gives slots to
// admitted ones, and inserts the blocks that they store. Used by the engine thread.
class PrefixAdmission {
 public:
  // kv, tiers (null: none): outlive this. max_inside: maximum number of unfinished sequences.
  PrefixAdmission(KvCache& kv, BlockTiers* tiers, int32_t max_sequences, int32_t max_inside);

  // Records the prompt of a new request, once for all its samples.
  void record_prompt(Sequences samples);

  // ---- planning
  // If pages are short, hands blocks over to the sequence that alone uses them, if its policy is
  // lossy. The policy then compresses them before any sequence is preempted.
  void relieve_pressure(Sequences sequences, int64_t running, PrefixPins::Time now);
  // Returns: a candidate for each sequence, valid until the next call. Waiting ones are matched
  // with the prefix cache.
  std::span<const Candidate> candidates(Sequences sequences);
  // Reads what the stores have of waiting prompts. Called before candidates(), which then shows
  // those that are still read as Candidate::restoring.
  void restore(Sequences sequences, PrefixPins::Time now);
  PrefixRestore& restoring() { return restore_; }

  // ---- in a step
  struct Admitted {
    int64_t prompt_tokens = 0;  // of all prompts that were looked up
    int64_t cached_tokens = 0;  // those attached from the prefix cache
  };
  // Gives a slot to each admitted sequence, with its match or its swapped-out contents.
  Admitted admit(const StepPlan& plan, Sequences sequences, PrefixPins::Time now);
  // Inserts the sections that this step has compressed (KvCache::compress).
  void insert_sections(const StepPlan& plan, Sequences sequences);
  // Inserts the blocks that this step's prefills stored.
  void insert_prompts(const StepPlan& plan, Sequences sequences);
  // Inserts all blocks that the sequence may insert.
  // Requires: the sequence owns `slot`.
  void insert_stored(Sequence& sequence, const KvSlot& slot, bool replace_coarser);

 private:
  Candidate candidate_of(size_t i, Sequences sequences) const;
  const Candidate& first_sample(size_t i) const;
  KvDemand demand_of(const Sequence& sequence) const;
  void set_match(Sequence& sequence, const KvMatch& match, Candidate& candidate) const;
  void find_prefix_in_progress(size_t i, Sequences sequences);
  void count_unlocked(Sequences sequences);
  KvPrompt cache_prompt(Sequence& sequence) const { return cache_prompt_of(sequence, kv_); }

  KvCache& kv_;
  SharedPrefixes& prefixes_;
  PrefixRestore restore_;
  std::vector<Candidate> candidates_;
  std::vector<uint64_t> first_hashes_;        // [candidates], of the first block's path; 0: none
  std::vector<const KvSlot*> running_slots_;  // of running sequences, the last one first
  std::vector<int64_t> unlocked_pages_;       // parallel to running_slots_
};

}  // namespace tessera
