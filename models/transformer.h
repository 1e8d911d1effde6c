#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "models/config/model_config.h"
#include "models/weights/load_options.h"

namespace tessera {

class LoraAdapter;

// Consecutive rows of a step whose products an adapter changes (models/lora/). Not owned.
struct AdapterRows {
  const LoraAdapter* adapter = nullptr;
  int32_t first_row = 0;
  int32_t count = 0;
};

// The tokens of one step, grouped by sequence. The spans are not owned.
struct Batch {
  std::span<const int32_t> tokens;           // [tokens]
  std::span<const int32_t> positions;        // [tokens]
  std::span<const SequenceSpan> sequences;   // cover [0, tokens) in order, without gaps
  std::span<const KvScoring> scorings = {};  // [sequences]; empty: no sequence is scored
  bool share_reads = true;                   // see AttentionArgs
  // In ascending order, without overlap. Other rows have no adapter.
  std::span<const AdapterRows> adapters = {};
};

struct TransformerOptions {
  std::optional<WeightFormat> weights = WeightFormat::f32;  // none: stored_format() (weights.h)
  StepLimits limits;             // of the largest step; they size the workspace
  int32_t max_logits_rows = 64;  // max rows of one call of logits()
  // Splits the model over ranks (models/config/shard.h), which all load it and make the same calls.
  // Null: one process has the whole model. Not owned; must outlive the transformer.
  Communicator* ranks = nullptr;
  LoadOptions load = {};
};

// A decoder model on one backend: an attention block and a feed-forward block in each layer, which
// its architecture names (models/architectures/). Owns weights and workspace, but no KV pages.
// forward() and logits() allocate nothing. Not thread-safe.
class Transformer {
 public:
  // Loads config and weights of a Hugging Face directory or a GGUF file. Weights are converted to
  // options.weights while they are read, or kept as they are.
  // Errors: those of read_model_config (models/config/model_config.h), Checkpoint::open and
  // Weights::load, which name file, tensor and the expected shape; InvalidArgument for limits below
  // 1, for a context beyond the model's, or if the model cannot be split over the ranks;
  // ResourceExhausted if memory does not suffice.
  static absl::StatusOr<std::unique_ptr<Transformer>> load(const std::filesystem::path& model,
                                                           const TransformerOptions& options,
                                                           const Backend& backend, Stream stream);

  virtual ~Transformer() = default;

  // Records decode steps of all sizes if the backend can, so that forward() starts each one as one
  // recording (models/decode_steps.h). Steps without a recording run op by op, to the same bits.
  // Requires: called before the first step over `pages`; their memory stays in place afterwards.
  virtual void prepare(const KvPagesView& /*pages*/, Stream /*stream*/) {}

  // Stores the batch's keys and values into `pages`. Keeps the hidden state of each token for
  // logits().
  // Requires: the page-table rows have room for the batch; the batch is within the limits; the
  // positions of a sequence continue its context.
  virtual void forward(const Batch& batch, const KvPagesView& pages, Stream stream) = 0;

  // Computes the logits after some tokens of the last forward(). They are computed on demand only:
  // with a large vocabulary, the logits of a whole prompt chunk would dominate the step. Further
  // calls may compute more rows. A row depends on its sequence's tokens alone, not on their
  // division into steps, the rest of the batch or the other `rows`.
  // rows: batch rows in any order, at most max_logits_rows()
  // logits: [rows, vocab], in the backend's memory; enqueued on the stream, not waited for
  virtual void logits(std::span<const int32_t> rows, MatrixView<float> logits, Stream stream) = 0;
  virtual int32_t max_logits_rows() const = 0;

  // An adapter for this model (models/lora/adapter.h), for Batch::adapters of this model. A row's
  // results depend on its own adapter alone. Any thread, also during a step.
  // Returns: the bytes that load_adapter() will allocate; the adapter.
  // Errors: those of LoraAdapter::measure and load; Unimplemented if the backend or the model
  // serves none.
  virtual absl::StatusOr<int64_t> measure_adapter(const std::filesystem::path& path) const;
  virtual absl::StatusOr<std::shared_ptr<const LoraAdapter>> load_adapter(
      const std::filesystem::path& path) const;

  // Computes the hidden states of some tokens of the last forward(): the residual stream after the
  // final norm, which embeddings are made of. With several ranks, each has the same result.
  // rows: as in logits()
  // Returns: [rows, hidden], in the backend's memory until the next call of hidden() or logits();
  // enqueued on the stream, not waited for
  virtual MatrixView<const float> hidden(std::span<const int32_t> rows, Stream stream) = 0;

  // With ranks, it has this rank's share of heads, kv_heads and ffn; pages hold its KV heads only.
  virtual const ModelConfig& config() const = 0;
  virtual std::string weight_formats() const = 0;  // Weights::formats()
  virtual int64_t weight_bytes() const = 0;        // in the backend's packed form
  virtual int64_t workspace_bytes() const = 0;
};

}  // namespace tessera
