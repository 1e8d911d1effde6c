#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "models/config.h"
#include "models/safetensors.h"

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

// One line of the table that loading, checking, memory estimates and random checkpoints all read.
struct TensorRule {
  const char* pattern;  // the tensor's name; "{}" is the layer, without it there is but one
  WeightSlot slot;      // tensors of one slot stand in it in the order of the table
  int64_t (*rows)(const ModelConfig&);
  int64_t (*cols)(const ModelConfig&);  // null: the tensor is a vector
  bool (*present)(const ModelConfig&);  // null: always
};

std::span<const TensorRule> tensor_table();

inline constexpr int32_t kNoLayer = -1;

// A tensor that a checkpoint must have, and its place: rows [first_row, first_row + shape[0]) of
// the slot. A tied embedding has two places, as table and as head.
struct ExpectedTensor {
  std::string name;
  TensorShape shape;
  WeightSlot slot = WeightSlot::embedding;
  int32_t layer = kNoLayer;
  int64_t first_row = 0;
};

// A slot with all its tensors' rows.
struct WeightShape {
  WeightSlot slot = WeightSlot::embedding;
  int32_t layer = kNoLayer;
  int64_t rows = 0;
  int64_t cols = 1;  // 1 for vectors
};

// The table applied to a config; a slot's tensors follow each other.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);
std::vector<WeightShape> weight_shapes(const ModelConfig& config);

// Whether a checkpoint may have this tensor though nothing reads it: RoPE frequencies that old
// exporters stored, and the head of a model whose head is tied.
bool may_be_ignored(const std::string& tensor_name, const ModelConfig& config);

}  // namespace tessera
