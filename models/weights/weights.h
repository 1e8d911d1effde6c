#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/checkpoint/checkpoint.h"
#include "models/config/model_config.h"
#include "models/config/shard.h"
#include "models/weights/aligned_memory.h"
#include "models/weights/load_options.h"

namespace tessera {

struct LayerWeights {
  int32_t layer = 0;                       // its index
  std::span<float> attention_norm;         // [hidden]
  StackedWeight qkv;                       // [query_width + 2 * kv_width, hidden]
  std::span<float> qkv_bias;               // [query_width + 2 * kv_width] or empty
  std::span<float> query_norm;             // [head_dim] or empty
  std::span<float> key_norm;               // [head_dim] or empty
  StackedWeight attention_out;             // [hidden, query_width]
  std::span<float> attention_out_bias;     // [hidden] or empty
  std::span<float> norm_behind_attention;  // [hidden] or empty
  std::span<float> ffn_norm;               // [hidden]
  // [experts, hidden], of a mixture of experts. One row more: the gate of the shared expert.
  StackedWeight router;
  // One of each for a dense feed-forward block, else one for each expert of this rank.
  std::vector<StackedWeight> gate_up;  // [2 * ffn, hidden]: gate, then up
  std::span<float> gate_up_bias;       // [2 * ffn] or empty
  std::vector<StackedWeight> down;     // [hidden, ffn]
  std::span<float> down_bias;          // [hidden] or empty
  StackedWeight shared_gate_up;        // [2 * shared_ffn, hidden], of the expert of every token
  StackedWeight shared_down;           // [hidden, shared_ffn]
  std::span<float> norm_behind_ffn;    // [hidden] or empty
};

// Views into the one piece of memory that holds a model's weights. Not owned. One of the three
// embeddings has data.
struct WeightViews {
  PackedWeight embedding_packed;    // [vocab, hidden], if the backend looks up its rows
  MatrixView<bf16> embedding;       // [vocab, hidden]
  MatrixView<float> embedding_f32;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::span<float> final_norm;  // [hidden]
  StackedWeight head;           // [vocab, hidden]; a tied one is embedding_packed if formats allow
};

// Returns: format of a packed embedding table, which keeps its own. It is only looked up, one row
// per token, so a conversion would save little. f32 becomes bf16 unless the weights keep more: f32,
// f16, or none for weights as they are.
WeightFormat table_format(std::optional<WeightFormat> format, TensorType stored);

// Returns: type of the embedding table where packed rows cannot be looked up: bf16, or f32 if bf16
// would lose precision that the format keeps.
TensorType embedding_type(std::optional<WeightFormat> format, TensorType stored);

// Returns: format of the head, if matrices are converted. It is the format of the other matrices,
// except int8 if they are int4. The head's errors go into the logits directly, and no later layer
// reduces them. On the first shipped model, int4 with an int8 head chose another token than f32 at
// 5.1 % of the positions (KL 0.0092). With an int4 head it did so at 7.5 % (KL 0.0106). The head is
// a small part of the bytes of models that need int4.
WeightFormat head_format(WeightFormat format);

// Returns: the format that all matrices of a checkpoint have if none is asked for. It is the
// smallest that loses nothing: bf16 or f16 if all of them have that type, else f32. None if any is
// quantised: each matrix then keeps its own format, with the checkpoint's integers and scales.
std::optional<WeightFormat> stored_format(const Checkpoint& checkpoint);

// Returns: bytes that Weights::load will allocate for this config and a conversion to `format`,
// without loading anything. For one rank, pass its shard_config().
int64_t weight_bytes(const ModelConfig& config, WeightFormat format, TensorType stored_embedding,
                     const Backend& backend);

// Memory of a model's weights, and the formats of its matrices: "int4, int8".
struct WeightSize {
  int64_t bytes = 0;
  std::string formats;
};

// Owns a model's weights, packed once for a backend.
class Weights {
 public:
  // Returns: the bytes that load() will allocate. Reads no weight.
  // Errors: those of load() that need no weights.
  static absl::StatusOr<WeightSize> measure(const ModelConfig& config, Shard shard,
                                            const Checkpoint& checkpoint,
                                            std::optional<WeightFormat> format,
                                            const Backend& backend);

  // Loads the part of a model that a rank holds; `config` is the whole model's. First checks that
  // the checkpoint has every tensor of the table with its shape, and no others. Then allocates, and
  // packs some rows at a time.
  // format: of all matrices; none: as stored_format() says
  // Requires: check_divides(config, shard.ranks) succeeds.
  // Errors: NotFound, InvalidArgument (a shape, an unexpected tensor, a value that is not finite,
  // a format without kernels, or ranks that would share a block of inputs), Unimplemented (a type),
  // ResourceExhausted. Errors about a tensor name it and its file.
  static absl::StatusOr<Weights> load(const ModelConfig& config, Shard shard,
                                      const Checkpoint& checkpoint,
                                      std::optional<WeightFormat> format, const Backend& backend,
                                      const LoadOptions& options = {});

  const WeightViews& views() const { return views_; }
  int64_t bytes() const { return memory_.size(); }
  std::string formats() const;  // as in WeightSize

 private:
  AlignedMemory memory_;
  WeightViews views_;
};

}  // namespace tessera
