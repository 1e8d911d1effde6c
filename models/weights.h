#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/aligned_memory.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "models/shard.h"

namespace tessera {

struct LayerWeights {
  std::span<float> attention_norm;  // [hidden]
  PackedWeight qkv;                 // [query_width + 2 * kv_width, hidden]
  std::span<float> qkv_bias;        // [query_width + 2 * kv_width] or empty
  std::span<float> query_norm;      // [head_dim] or empty
  std::span<float> key_norm;        // [head_dim] or empty
  PackedWeight attention_out;       // [hidden, query_width]
  std::span<float> ffn_norm;        // [hidden]
  PackedWeight gate_up;             // [2 * ffn, hidden]: gate, then up
  PackedWeight down;                // [hidden, ffn]
};

// Views into the one piece of memory that holds a model's weights. Not owned.
struct WeightViews {
  MatrixView<bf16> embedding;       // [vocab, hidden], null if the table is f32
  MatrixView<float> embedding_f32;  // [vocab, hidden], null if the table is bf16
  std::vector<LayerWeights> layers;
  std::span<float> final_norm;  // [hidden]
  PackedWeight head;            // [vocab, hidden]
};

// Returns: type of the embedding table. It is only looked up, one row per token, so no format makes
// it smaller than bf16. It is f32 if bf16 would lose precision that the format keeps. That is the
// case for f32 or f16 weights of a checkpoint that is not bf16 itself.
TensorType embedding_type(WeightFormat format, TensorType stored);

// Returns: format of the head. It is the format of the other matrices, except int8 if they are
// int4. The head's errors go into the logits directly, and no later layer reduces them. On the
// first shipped model, int4 with an int8 head chose another token than f32 at 5.1 % of the
// positions (KL 0.0092). With an int4 head it did so at 7.5 % (KL 0.0106). The head is a small part
// of the bytes of models that need int4.
WeightFormat head_format(WeightFormat format);

// Returns: the default weight format, the smallest that loses nothing: bf16 or f16 if all matrices
// of the checkpoint have that type, else f32. If any matrix is quantised it is f16, which loses
// least of the formats in two bytes: on SmolLM2's Q4_1 file KL 3e-6 from f32, and 1.3e-4 as bf16.
WeightFormat stored_format(const Checkpoint& checkpoint);

// Returns: bytes that Weights::load will allocate for this config, without loading anything. For
// one rank, pass its shard_config().
int64_t weight_bytes(const ModelConfig& config, WeightFormat format, TensorType stored_embedding,
                     const Backend& backend);

// Owns a model's weights, converted once for a backend.
class Weights {
 public:
  // Loads the part of a model that a rank holds; `config` is the whole model's. First checks that
  // the checkpoint has every tensor of the table with its shape, and no others. Then allocates, and
  // converts some rows at a time.
  // Requires: check_divides(config, shard.ranks) succeeds.
  // Errors: NotFound, InvalidArgument (a shape, an unexpected tensor, a value that is not finite,
  // no kernels for `format`, or ranks that would share a block of inputs), Unimplemented (a type),
  // ResourceExhausted. Errors about a tensor name it and its file.
  static absl::StatusOr<Weights> load(const ModelConfig& config, Shard shard,
                                      const Checkpoint& checkpoint, WeightFormat format,
                                      const Backend& backend);

  const WeightViews& views() const { return views_; }
  int64_t bytes() const { return memory_.size(); }

 private:
  AlignedMemory memory_;
  WeightViews views_;
};

}  // namespace tessera
