#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "models/config.h"

namespace tessera {

// The tokens of one step, sequence after sequence.
struct Batch {
  std::span<const int32_t> tokens;           // [tokens]
  std::span<const int32_t> positions;        // [tokens]
  std::span<const SequenceSpan> sequences;   // cover [0, tokens) in order, without gaps
  std::span<const KvScoring> scorings = {};  // one for each sequence; empty: nobody wants any
  bool share_reads = true;                   // see AttentionArgs
};

struct TransformerOptions {
  WeightFormat weights = WeightFormat::f32;
  StepLimits limits;             // of the largest step; the workspace is sized by it
  int32_t max_logits_rows = 64;  // most rows of one call of logits()
  // The model is split over its ranks (models/shard.h), which all load it and make the same calls;
  // null: one process has it whole. Outlives the transformer.
  Communicator* ranks = nullptr;
};

// A decoder of the Llama family on one backend. Owns weights and workspace; forward() and logits()
// allocate nothing. Not thread-safe: one thread drives it.
class Transformer {
 public:
  // Loads a Hugging Face directory: config, then weights, converted to options.weights as they are
  // read. Errors: those of read_model_config (models/config.h), Checkpoint::open and Weights::load,
  // which name file, tensor and the shape that was expected; InvalidArgument for limits below 1, a
  // context beyond the model's, or ranks that cannot share it; ResourceExhausted when memory does
  // not suffice.
  static absl::StatusOr<std::unique_ptr<Transformer>> load(const std::filesystem::path& directory,
                                                           const TransformerOptions& options,
                                                           const Backend& backend, Stream stream);

  virtual ~Transformer() = default;

  // Before the first step over these pages, which stay: notes decode steps of all sizes where the
  // backend can, so that forward() starts each of them at once (models/decode_steps.h). What is not
  // noted is computed op by op, to the same bits.
  virtual void prepare(const KvPagesView& /*pages*/, Stream /*stream*/) {}

  // Stores the batch's keys and values into `pages` and keeps the hidden state of each of its
  // tokens for logits(). Requires: the rows of `pages` hold room for the batch; the batch is within
  // the limits; a sequence's positions follow its context.
  virtual void forward(const Batch& batch, const KvPagesView& pages, Stream stream) = 0;

  // The logits after some tokens of the last forward(), which are computed only when asked for: at
  // a large vocabulary those of a whole prompt chunk would outweigh everything else. Call it as
  // often as there are rows left. A row depends on its sequence's tokens alone: not on how they
  // were cut into steps, nor on what else is in the batch or in `rows`.
  // rows: of the batch, in any order, at most max_logits_rows()
  // logits: [rows, vocab], in the backend's memory; computed, not waited for
  virtual void logits(std::span<const int32_t> rows, MatrixView<float> logits, Stream stream) = 0;
  virtual int32_t max_logits_rows() const = 0;

  // Of ranks, each has its own heads, kv_heads and ffn, and pages for its own KV heads.
  virtual const ModelConfig& config() const = 0;
  virtual int64_t weight_bytes() const = 0;  // as the backend holds them
  virtual int64_t workspace_bytes() const = 0;
};

}  // namespace tessera
