#pragma once

#include <cstdint>

#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_cache.h"
#include "engine/prefix_restore.h"
#include "engine/prefix_wishes.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"

namespace tessera {

// Admits sequences with their cached prefixes: gives slots to admitted ones, and inserts the blocks
// that they store. Used by the engine thread.
class PrefixAdmission {
 public:
  // kv, tiers (null: none): outlive this.
  PrefixAdmission(KvCache& kv, BlockTiers* tiers, int32_t max_sequences);

  // Records the prompt of a new request, once for all its samples.
  void record_prompt(Sequences samples);

  // ---- planning
  // If pages are short, hands blocks over to the sequence that alone uses them, if its policy is
  // lossy. The policy then compresses them before any sequence is preempted.
  void relieve_pressure(Sequences sequences, int64_t running, PrefixPins::Time now);
  // Reads what the stores have of waiting prompts. Called before StepCandidates, which then
  // shows those that are still read as CachedPrefix::restoring.
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
  KvPrompt cache_prompt(Sequence& sequence) const { return cache_prompt_of(sequence, kv_); }

  KvCache& kv_;
  SharedPrefixes& prefixes_;
  PrefixRestore restore_;
};

}  // namespace tessera
