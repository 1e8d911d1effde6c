#include "models/weights/tensor_table.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "models/architectures/architecture.h"
#include "models/architectures/tensor_pattern.h"

namespace tessera {
namespace {

using enum ShardAxis;

// Returns: true if the pattern has exactly the indices that `index` has.
bool has_indices(const TensorRule& rule, const TensorIndex& index) {
  return absl::StrContains(rule.pattern, kLayerIndex) == (index.layer != TensorIndex::kNone) &&
         absl::StrContains(rule.pattern, kExpertIndex) == (index.expert != TensorIndex::kNone);
}

// Returns: each layer, followed by the experts of one rank; last the index of tensors outside the
// layers.
std::vector<TensorIndex> all_indices(const ModelConfig& config) {
  std::vector<TensorIndex> all;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    all.push_back({layer, TensorIndex::kNone});
    for (int32_t expert = 0; expert < config.own_experts; ++expert) {
      all.push_back({layer, expert});
    }
  }
  all.push_back({});
  return all;
}

// `config` is the whole model's, `own` is that of the rank (shard_config()).
ExpectedTensor expect(const TensorRule& rule, const TensorIndex& index, const ModelConfig& config,
                      const ModelConfig& own, Shard shard) {
  ExpectedTensor tensor;
  const int32_t expert = shard.rank * own.own_experts + index.expert;
  const auto name_of = [&](const char* pattern) {
    return absl::StrReplaceAll(
        absl::StrCat(architecture_of(config).prefix, pattern),
        {{kLayerIndex, absl::StrCat(index.layer)}, {kExpertIndex, absl::StrCat(expert)}});
  };
  tensor.name = name_of(rule.pattern);
  if (rule.stacked.pattern != nullptr) tensor.holder = name_of(rule.stacked.pattern);
  tensor.shape.push_back(rule.stored_rows == nullptr ? rule.rows(config)
                                                     : rule.stored_rows(config));
  if (rule.cols != nullptr) {
    tensor.shape.push_back(rule.cols(config));
  }
  tensor.slot = rule.slot;
  tensor.index = index;
  tensor.rows = rule.split == rows ? rule.rows(own) : rule.rows(config);
  if (rule.cols != nullptr) {
    tensor.cols = rule.split == cols ? rule.cols(own) : rule.cols(config);
  }
  tensor.stored_row = rule.split == rows ? shard.rank * tensor.rows : 0;
  if (rule.first_row != nullptr) {
    tensor.stored_row += rule.first_row(config);
  }
  tensor.stored_col = rule.split == cols ? shard.rank * tensor.cols : 0;
  tensor.plus_one = rule.plus_one;
  return tensor;
}

// Appends a tensor; its rows follow those of earlier tensors of its slot.
void append(ExpectedTensor tensor, std::vector<ExpectedTensor>& all) {
  if (!all.empty() && all.back().slot == tensor.slot && all.back().index == tensor.index) {
    tensor.first_row = all.back().first_row + all.back().rows;
  }
  all.push_back(std::move(tensor));
}

WeightKind kind_of(const ExpectedTensor& tensor) {
  if (tensor.slot == WeightSlot::embedding) {
    return WeightKind::table;
  }
  return tensor.shape.size() == 1 ? WeightKind::vector : WeightKind::matrix;
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, Shard shard) {
  return expected_tensors(architecture_of(config).tensors, config, shard);
}

std::vector<ExpectedTensor> expected_tensors(std::span<const TensorRule> table,
                                             const ModelConfig& config, Shard shard) {
  const ModelConfig own = shard_config(config, shard.ranks);
  std::vector<ExpectedTensor> all;
  for (const TensorIndex& index : all_indices(own)) {
    for (const TensorRule& rule : table) {
      if (has_indices(rule, index) && (rule.present == nullptr || rule.present(config))) {
        append(expect(rule, index, config, own, shard), all);
      }
    }
  }
  return all;
}

std::vector<WeightShape> weight_shapes(const ModelConfig& config) {
  std::vector<WeightShape> shapes;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    if (tensor.first_row == 0) {
      shapes.push_back({tensor.slot, kind_of(tensor), tensor.index, 0, tensor.cols});
    }
    shapes.back().rows += tensor.rows;
  }
  return shapes;
}

bool may_be_ignored(const std::string& tensor_name, const ModelConfig& config) {
  const Architecture& architecture = architecture_of(config);
  return absl::EndsWith(tensor_name, ".rotary_emb.inv_freq") ||
         (config.tied_head && tensor_name == absl::StrCat(architecture.prefix, "lm_head.weight")) ||
         std::ranges::any_of(architecture.ignored, [&](const char* beginning) {
           return absl::StartsWith(tensor_name, beginning);
         });
}

}  // namespace tessera
