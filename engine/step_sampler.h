#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "engine/sequence.h"
#include "engine/step_builder.h"
#include "engine/step_masks.h"
#include "models/transformer.h"

namespace tessera {

// Computes the logits of a step, chooses tokens from them, and passes those that requests observe
// to the event sinks.
class StepSampler {
 public:
  // model: outlives this.
  StepSampler(Sampler sampler, StepMasks masks, Transformer& model, Stream stream);

  // Requires: rows of the last forward pass; their sequences have not ended.
  // Returns: number of tokens that were appended. Ends sequences that reach a stop id or their
  // length, and those with a logit that is not finite. Sorts the rows. Collective: masks.
  int64_t sample(std::span<LogitsRow> rows, Sequences sequences);

 private:
  int64_t sample_slice(std::span<const LogitsRow> rows, Sequences sequences);
  bool choose(Sequence& sequence, int32_t position, size_t choice);
  void observe(const LogitsRow& row, std::span<const float> logits, Sequences sequences);

  Sampler sampler_;
  StepMasks masks_;
  Transformer& model_;
  const Stream stream_;
  std::vector<int32_t> slice_rows_;  // batch rows of one slice
  std::vector<bool> slice_chooses_;  // those from which a token is sampled
};

}  // namespace tessera
