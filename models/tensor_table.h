#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "models/config.h"
#include "models/safetensors.h"
#include "models/shard.h"

namespace tessera {

// One weight of the forward pass. Some slots stack several tensors of a checkpoint by rows: query,
// key and value share one product of the normed hidden state, and so do gate and up. (This is not a
// KV slot.)
enum class WeightSlot : uint8_t {
  embedding,
  attention_norm,
  qkv,
  qkv_bias,
  attention_out,
  ffn_norm,
  gate_up,
  down,
  final_norm,
  head
};

// Storage of a slot: an embedding table, a vector of f32, or a matrix packed by the backend.
enum class WeightKind : uint8_t { table, vector, matrix };
WeightKind kind(WeightSlot slot);

// The dimension in which ranks split a tensor (models/shard.h); none: replicated.
enum class ShardAxis : uint8_t { none, rows, cols };

// One line of the tensor table, which is shared by loading, checking, memory estimates and random
// checkpoints.
struct TensorRule {
  const char* pattern;  // the tensor's name; "{}" is the layer, without it there is only one
  WeightSlot slot;      // tensors of one slot are stacked in the order of the table
  int64_t (*rows)(const ModelConfig&);
  int64_t (*cols)(const ModelConfig&);  // null: the tensor is a vector
  ShardAxis split;
  bool (*present)(const ModelConfig&);  // null: always
};

std::span<const TensorRule> tensor_table();

inline constexpr int32_t kNoLayer = -1;

// A tensor that a checkpoint must have, and the part of it that a rank holds. The part becomes rows
// [first_row, first_row + rows) of the slot. A tied embedding has two entries, as table and as
// head.
struct ExpectedTensor {
  std::string name;
  TensorShape shape;  // of the whole tensor in the checkpoint
  WeightSlot slot = WeightSlot::embedding;
  int32_t layer = kNoLayer;
  int64_t first_row = 0;
  int64_t rows = 0;        // rows of the part; all rows if there is one rank
  int64_t cols = 1;        // 1 for vectors
  int64_t stored_row = 0;  // first row and column of the part in the stored tensor
  int64_t stored_col = 0;
};

// Shape of a slot, with the rows of all its tensors.
struct WeightShape {
  WeightSlot slot = WeightSlot::embedding;
  int32_t layer = kNoLayer;
  int64_t rows = 0;
  int64_t cols = 1;  // 1 for vectors
};

// The table applied to a config. Tensors of one slot follow each other.
// expected_tensors takes the whole model's config, and requires check_divides(config, shard.ranks).
// weight_shapes returns the shapes of one rank if `config` is that of one rank (shard_config()).
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, Shard shard = {});
std::vector<WeightShape> weight_shapes(const ModelConfig& config);

// Returns: true if a checkpoint may contain this tensor although it is never read. These are RoPE
// frequencies stored by old exporters, and the head of a model with a tied head.
bool may_be_ignored(const std::string& tensor_name, const ModelConfig& config);

}  // namespace tessera
