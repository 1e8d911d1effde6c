#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/config.h"

namespace tessera {

// The tokens of one step, sequence after sequence.
struct Batch {
  std::span<const int32_t> tokens;          // [tokens]
  std::span<const int32_t> positions;       // [tokens]
  std::span<const SequenceSpan> sequences;  // cover [0, tokens) in order, without gaps
  std::span<const int32_t> logits_rows;     // rows whose logits are wanted
};

struct TransformerOptions {
  WeightFormat weights = WeightFormat::f32;
  StepLimits limits;            // of the largest step; the workspace is sized by it
  int32_t max_logits_rows = 0;  // most logits_rows of a step
};

// A decoder of the Llama family on one backend. Owns weights and workspace; forward() allocates
// nothing. Not thread-safe: one thread drives it.
class Transformer {
 public:
  // Loads a Hugging Face directory: config, then weights, converted to options.weights as they are
  // read. Errors: those of read_model_config (models/config.h), Checkpoint::open and Weights::load,
  // which name file, tensor and the shape that was expected; InvalidArgument for limits below 1 or
  // a context beyond the model's; ResourceExhausted when memory does not suffice.
  static absl::StatusOr<std::unique_ptr<Transformer>> load(const std::filesystem::path& directory,
                                                           const TransformerOptions& options,
                                                           const Backend& backend, Stream stream);

  virtual ~Transformer() = default;

  // Stores the batch's keys and values into `pages` and computes logits. Requires: the rows of
  // `pages` hold room for the batch; the batch is within the limits; a sequence's positions follow
  // its context. A row of logits depends on its sequence's tokens alone: not on how they were cut
  // into steps, nor on what else is in the batch.
  // logits: [logits_rows, vocab]
  virtual void forward(const Batch& batch, const KvPagesView& pages, MatrixView<float> logits,
                       Stream stream) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual int64_t weight_bytes() const = 0;  // as the backend holds them
  virtual int64_t workspace_bytes() const = 0;
};

}  // namespace tessera
