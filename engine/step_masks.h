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

  // Fills a mask for each row in which a constrained sequence chooses a token. A mask behind
  // drafted tokens is that of their grammar's state. Behind one that the grammar forbids, and that
  // is thus not chosen, masks are not defined. Collective.
  // Requires: the rows of a sequence follow each other, in order of position.
  void fill(std::span<const LogitsRow> rows, Sequences sequences);

  // Returns: the mask of a row that chooses in the step, [mask_words(vocab)]; empty without a
  // grammar. Valid until the next fill().
  std::span<const uint32_t> of(const LogitsRow& row) const;

 private:
  Ranks& ranks_;
  const size_t words_;
  std::unique_ptr<ThreadPool> own_threads_;  // null: of a host backend, or no leader
  ThreadPool* threads_ = nullptr;            // not owned; null on ranks other than the leader
  // The rows of a constrained sequence that chooses: those at [position, position + rows).
  struct Chooser {
    int32_t sequence = 0;
    int32_t position = 0;
    int32_t rows = 0;
    size_t first_mask = 0;
  };
  void fill(const Chooser& chooser, Sequences sequences);

  std::vector<Chooser> choosers_;  // in the order of the masks
  std::vector<uint32_t> masks_;    // [at least max_sequences, words_]
};

}  // namespace tessera
