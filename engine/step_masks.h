#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/ranks.h"
#include "engine/sequence.h"
#include "engine/step_builder.h"
#include "kernels/backend.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {

// The token masks of a step's constrained sequences. The leader asks their grammars, and all ranks
// get the same bits. Several threads fill masks at once. A host backend lends those of its stream;
// beside a device, threads of its own fill masks while the device computes. Its memory is allocated
// once, for the largest step.
class StepMasks {
 public:
  // ranks: outlives this, as does the backend's stream.
  StepMasks(Ranks& ranks, int32_t vocab, int32_t max_sequences, const Backend& backend,
            Stream stream);

  // Fills the mask of each constrained sequence that chooses a token. Collective.
  // Requires: each sequence chooses in at most one row.
  void fill(std::span<const LogitsRow> rows, Sequences sequences);

  // Returns: the mask of a sequence that chooses in the step, [mask_words(vocab)]; empty without a
  // grammar. Valid until the next fill().
  std::span<const uint32_t> of(int32_t sequence) const;

 private:
  Ranks& ranks_;
  const size_t words_;
  std::unique_ptr<ThreadPool> own_threads_;  // null: of a host backend, or no leader
  ThreadPool* threads_ = nullptr;            // not owned; null on ranks other than the leader
  std::vector<int32_t> sequences_;           // constrained and choosing, in the order of the masks
  std::vector<uint32_t> masks_;              // [max_sequences, words_]
};

}  // namespace tessera
