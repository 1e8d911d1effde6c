#include "models/lora/lora_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Returns: the product of a slot; none if adapters cannot change it.
std::optional<LowRankProduct LoraLayer::*> product_of(const ExpectedTensor& tensor) {
  if (tensor.shape.size() != 2 || tensor.index.expert != TensorIndex::kNone) return std::nullopt;
  switch (tensor.slot) {
    case WeightSlot::qkv:
      return &LoraLayer::qkv;
    case WeightSlot::attention_out:
      return &LoraLayer::attention_out;
    case WeightSlot::gate_up:
      return &LoraLayer::gate_up;
    case WeightSlot::down:
      return &LoraLayer::down;
    default:
      return std::nullopt;
  }
}

const StackedWeight& weight_of(const LayerWeights& weights, const ExpectedTensor& tensor) {
  switch (tensor.slot) {
    case WeightSlot::qkv:
      return weights.qkv;
    case WeightSlot::attention_out:
      return weights.attention_out;
    case WeightSlot::gate_up:
      return weights.gate_up.front();
    default:
      return weights.down.front();
  }
}

WeightFormat format_beside(const StackedWeight& weight) {
  const bool exact = std::ranges::all_of(
      weight.all(), [](const PackedWeight& part) { return part.format == WeightFormat::f32; });
  return exact ? WeightFormat::f32 : WeightFormat::bf16;
}

absl::Status check_matrix(const LoraFile& file, const ExpectedTensor& tensor, const char* matrix,
                          const TensorShape& found, const TensorShape& expected) {
  return found == expected ? absl::OkStatus()
                           : absl::InvalidArgumentError(absl::StrCat(
                                 file.describe(tensor.name), ": ", matrix, " has shape ",
                                 shown(found), ", expected ", shown(expected)));
}

absl::Status check_pair(const LoraFile& file, const ExpectedTensor& tensor, const LoraPair& pair) {
  const int64_t rank = pair.a->shape.empty() ? 0 : pair.a->shape.front();
  TESSERA_RETURN_IF_ERROR(check_matrix(file, tensor, "A", pair.a->shape, {rank, tensor.shape[1]}));
  return check_matrix(file, tensor, "B", pair.b->shape, {tensor.shape[0], rank});
}

// Returns: the error for a tensor whose changes are not supported, or that is not there.
absl::Status refused_module(const LoraFile& file, const std::string& name,
                            const std::vector<ExpectedTensor>& expected) {
  const bool known =
      absl::StartsWith(name, "lm_head.") ||
      std::ranges::any_of(expected, [&](const auto& tensor) { return tensor.name == name; });
  return known ? absl::UnimplementedError(
                     absl::StrCat(file.describe(name),
                                  ": adapters of this module are not supported, only those of "
                                  "attention and of a dense feed-forward block"))
               : absl::NotFoundError(
                     absl::StrCat(file.describe(name), ": the model has no such linear module"));
}

// Appends a tensor's part to its product. Parts of one stored tensor share its A.
void append_part(const LoraPair& pair, const ExpectedTensor& tensor, PlannedLoraProduct& product) {
  const bool shares = !product.parts.empty() && product.parts.back().pair == &pair;
  const int64_t first = shares ? product.parts.back().first_rank : product.ranks;
  product.ranks += shares ? 0 : pair.a->shape.front();
  product.parts.push_back({&pair, tensor, first});
}

void place_product(const PlannedLoraProduct& planned, const Backend& backend, MemoryCutter& cutter,
                   LowRankProduct& product) {
  const auto place = [&](LowRankSide side, int64_t rows, int64_t cols) {
    LowRankMatrix matrix{.side = side, .format = planned.format, .rows = rows, .cols = cols};
    matrix.data = cutter.bytes(backend.low_rank_bytes(matrix));
    return matrix;
  };
  product.down = place(LowRankSide::narrows, planned.ranks, planned.inputs);
  for (const PlannedLoraPart& part : planned.parts) {
    product.add({.up = place(LowRankSide::widens, part.tensor.rows, part.pair->a->shape.front()),
                 .first_output = part.tensor.first_row,
                 .first_rank = part.first_rank});
  }
}

}  // namespace

absl::StatusOr<std::vector<PlannedLoraProduct>> plan_lora(const LoraFile& file,
                                                          const LoraBase& base) {
  const std::vector<ExpectedTensor> expected = expected_tensors(base.whole, base.shard);
  std::vector<PlannedLoraProduct> plan;
  std::set<std::string> left;
  for (const auto& [name, pair] : file.pairs()) {
    left.insert(name);
  }
  for (const ExpectedTensor& tensor : expected) {
    const auto found = file.pairs().find(tensor.name);
    const std::optional<LowRankProduct LoraLayer::*> product = product_of(tensor);
    if (found == file.pairs().end() || !product) continue;
    TESSERA_RETURN_IF_ERROR(check_pair(file, tensor, found->second));
    left.erase(tensor.name);
    const int32_t layer = tensor.index.layer;
    if (plan.empty() || plan.back().layer != layer || plan.back().product != *product) {
      const LayerWeights& weights = base.weights.layers[static_cast<size_t>(layer)];
      plan.push_back({.layer = layer,
                      .product = *product,
                      .format = format_beside(weight_of(weights, tensor)),
                      .parts = {},
                      .inputs = tensor.cols});
    }
    append_part(found->second, tensor, plan.back());
  }
  if (!left.empty()) return refused_module(file, *left.begin(), expected);
  return plan;
}

int64_t place_lora(const std::vector<PlannedLoraProduct>& plan, const Backend& backend,
                   std::byte* base, std::vector<LoraLayer>& layers) {
  MemoryCutter cutter(base);
  std::ranges::fill(layers, LoraLayer{});
  for (const PlannedLoraProduct& planned : plan) {
    place_product(planned, backend, cutter,
                  layers[static_cast<size_t>(planned.layer)].*planned.product);
  }
  return cutter.used();
}

}  // namespace tessera
