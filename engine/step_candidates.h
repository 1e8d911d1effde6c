#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/candidate.h"
#include "engine/kv/kv_cache.h"
#include "engine/sequence.h"

namespace tessera {

// Returns: the scheduler's view of a sequence, with its latest match. Pure: changes nothing. The
// fields that relate it to other sequences are not set: unlocked and waits_for.
// first_sample: of the request's first sample, if that one stands before it and they share tokens;
// else null.
Candidate candidate_of(const Sequence& sequence, const KvCache& kv, const Candidate* first_sample);

// Shows the sequences of a step to the scheduler. Waiting ones are looked up in the prefix cache
// first. Used by the engine thread; allocates only when constructed.
class StepCandidates {
 public:
  // kv: outlives this. max_inside: maximum number of unfinished sequences.
  StepCandidates(KvCache& kv, int32_t max_sequences, int32_t max_inside);

  // Returns: a candidate for each sequence, valid until the next call.
  // Requires: sequences in scheduling order.
  std::span<const Candidate> of(Sequences sequences);

 private:
  void look_up(Sequence& sequence, const Candidate* first_sample);
  int32_t prefix_in_progress(size_t i, Sequences sequences) const;
  void count_unlocked(Sequences sequences);

  KvCache& kv_;
  SharedPrefixes& prefixes_;
  std::vector<Candidate> candidates_;
  std::vector<uint64_t> first_hashes_;        // [candidates], of the first block's path; 0: none
  std::vector<const KvSlot*> running_slots_;  // of running sequences, the last one first
  std::vector<int64_t> unlocked_pages_;       // parallel to running_slots_
};

}  // namespace tessera
