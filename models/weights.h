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
  PackedWeight attention_out;       // [hidden, query_width]
  std::span<float> ffn_norm;        // [hidden]
  PackedWeight gate_up;             // [2 * ffn, hidden]: gate, then up
  PackedWeight down;                // [hidden, ffn]
};

// Where everything lies in the one piece of memory that holds a model's weights.
struct WeightViews {
  MatrixView<bf16> embedding;       // [vocab, hidden], or
  MatrixView<float> embedding_f32;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::span<float> final_norm;  // [hidden]
  PackedWeight head;            // [vocab, hidden]
};

// The embedding table is only looked up, a row a token, so no format shrinks it below bf16. It is
// f32 where bf16 would lose something that the format keeps: f32 or f16 weights whose checkpoint is
// not bf16 itself.
TensorType embedding_type(WeightFormat format, TensorType stored);

// The head has the format of the other matrices, but int8 beside int4: its errors are the logits'
// errors, no later layer evens them out. On the first shipped model int4 with an int8 head chose
// another token than f32 at 5.1 % of the positions (KL 0.0092), with an int4 head at 7.5 %
// (0.0106), and the head is a small part of the bytes of the models that need int4.
WeightFormat head_format(WeightFormat format);

// Where nobody says otherwise, matrices stay as they are: bf16 or f16 if the checkpoint has all of
// them so, else f32.
WeightFormat stored_format(const Checkpoint& checkpoint);

// Bytes that Weights::load will hold for such a model (or shard_config() of one), known before
// anything is loaded.
int64_t weight_bytes(const ModelConfig& config, WeightFormat format, TensorType stored_embedding,
                     const Backend& backend);

// A model's weights, converted once for a backend.
class Weights {
 public:
  // The part of a model that a rank holds. Checks that the checkpoint has every tensor of the table
  // with its shape, and none besides; only then allocates and converts, some rows at a time.
  // Requires: check_divides(config, shard.ranks). Errors name file and tensor: NotFound,
  // InvalidArgument (a shape, a tensor nobody asked for, a value that is not finite),
  // Unimplemented (a type), ResourceExhausted.
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
