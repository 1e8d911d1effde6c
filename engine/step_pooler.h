#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "engine/step_builder.h"
#include "models/transformer.h"

namespace tessera {

// Passes the hidden states of a step to the sequences that make embeddings of them. Its memory is
// allocated once.
class StepPooler {
 public:
  // model, backend: outlive this.
  StepPooler(Transformer& model, const Backend& backend, Stream stream);

  // Requires: rows of the last forward pass in ascending order; their sequences have not ended.
  // Ends the sequences with a hidden state that is not finite.
  void pool(std::span<const HiddenRow> rows, Sequences sequences);

 private:
  void pool_slice(std::span<const HiddenRow> rows, Sequences sequences);

  Transformer& model_;
  const Backend& backend_;
  const Stream stream_;
  std::vector<int32_t> slice_rows_;     // batch rows of one slice
  std::vector<std::byte> host_memory_;  // copy of a slice; empty for a host backend
};

}  // namespace tessera
