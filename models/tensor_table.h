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

// The weights as a forward pass reads them. Some are several tensors of a checkpoint, one below
// the other: query, key and value are one product of the normed hidden state, so are gate and up.
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

// How a slot is held: an embedding table, a vector of f32, or a matrix packed by the backend.
enum class WeightKind : uint8_t { table, vector, matrix };
WeightKind kind(WeightSlot slot);

// What ranks do with a tensor (models/shard.h).
enum class ShardAxis : uint8_t { none, rows, cols };

// One line of the table that loading, checking, memory estimates and random checkpoints all read.
struct TensorRule {
  const char* pattern;  // the tensor's name; "{}" is the layer, without it there is but one
  WeightSlot slot;      // tensors of one slot stand in it in the order of the table
  int64_t (*rows)(const ModelConfig&);
  int64_t (*cols)(const ModelConfig&);  // null: the tensor is a vector
  ShardAxis split;
  bool (*present)(const ModelConfig&);  // null: always
};

std::span<const TensorRule> tensor_table();

inline constexpr int32_t kNoLayer = -1;

// A tensor that a checkpoint must have, the part of it that a rank holds, and that part's place:
// rows [first_row, first_row + rows) of the slot. A tied embedding has two places, as table and as
// head.
struct ExpectedTensor {
  std::string name;
  TensorShape shape;  // whole, as the checkpoint has it
  WeightSlot slot = WeightSlot::embedding;
  int32_t layer = kNoLayer;
  int64_t first_row = 0;
  int64_t rows = 0;        // of the part; all of them without ranks
  int64_t cols = 1;        // 1 for vectors
  int64_t stored_row = 0;  // where the part begins in the tensor
  int64_t stored_col = 0;
};

// A slot with all its tensors' rows.
struct WeightShape {
  WeightSlot slot = WeightSlot::embedding;
  int32_t layer = kNoLayer;
  int64_t rows = 0;
  int64_t cols = 1;  // 1 for vectors
};

// The table applied to a config; a slot's tensors follow each other. Slots' shapes are those of one
// rank where the config is (shard_config()).
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, Shard shard = {});
std::vector<WeightShape> weight_shapes(const ModelConfig& config);

// Whether a checkpoint may have this tensor though nothing reads it: RoPE frequencies that old
// exporters stored, and the head of a model whose head is tied.
bool may_be_ignored(const std::string& tensor_name, const ModelConfig& config);

}  // namespace tessera
