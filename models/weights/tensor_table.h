#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "files/stored_tensor.h"
#include "models/architectures/tensor_rule.h"
#include "models/config/model_config.h"
#include "models/config/shard.h"

namespace tessera {

// Storage of a slot: an embedding table, a vector of f32, or a matrix packed by the backend.
enum class WeightKind : uint8_t { table, vector, matrix };

// Indices of a tensor in a model, as far as its pattern has them.
struct TensorIndex {
  static constexpr int32_t kNone = -1;

  int32_t layer = kNone;
  int32_t expert = kNone;  // of those of one rank

  bool operator==(const TensorIndex&) const = default;
  bool operator<(const TensorIndex& other) const {
    return layer != other.layer ? layer < other.layer : expert < other.expert;
  }
};

// A tensor that a checkpoint must have, and the part of it that a rank holds. The part becomes rows
// [first_row, first_row + rows) of the slot. A tied embedding has two entries, as table and as
// head.
struct ExpectedTensor {
  std::string name;
  std::string holder;  // the tensor of a Hugging Face directory that holds it; empty: itself
  TensorShape shape;   // of the whole tensor in the checkpoint
  WeightSlot slot = WeightSlot::embedding;
  TensorIndex index;
  int64_t first_row = 0;
  int64_t rows = 0;        // rows of the part; all rows if there is one rank
  int64_t cols = 1;        // 1 for vectors
  int64_t stored_row = 0;  // first row and column of the part in the stored tensor
  int64_t stored_col = 0;
  bool plus_one = false;  // TensorRule::plus_one
};

// Shape of a slot, with the rows of all its tensors.
struct WeightShape {
  WeightSlot slot = WeightSlot::embedding;
  WeightKind kind = WeightKind::matrix;
  TensorIndex index;
  int64_t rows = 0;
  int64_t cols = 1;  // 1 for vectors
};

// The tensor table of the config's architecture, applied to the config. Tensors of one slot and
// index follow each other. expected_tensors takes the whole model's config, and requires
// check_divides(config, shard.ranks). weight_shapes returns the shapes of one rank if `config` is
// that of one rank (shard_config()).
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, Shard shard = {});
std::vector<ExpectedTensor> expected_tensors(std::span<const TensorRule> table,
                                             const ModelConfig& config, Shard shard = {});
std::vector<WeightShape> weight_shapes(const ModelConfig& config);

// Returns: true if a checkpoint may contain this tensor although it is never read. These are RoPE
// frequencies stored by old exporters, the head of a model with a tied head, and tensors that the
// architecture ignores.
bool may_be_ignored(const std::string& tensor_name, const ModelConfig& config);

}  // namespace tessera
