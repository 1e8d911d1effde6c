#include "models/weights/weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "files/quantised_matrix.h"
#include "models/weights/slot_reader.h"
#include "models/weights/tensor_table.h"
#include "models/weights/weight_loader.h"
#include "models/weights/weight_plan.h"

namespace tessera {
namespace {

// A checkpoint has the tensors of all ranks.
absl::Status check_nothing_unexpected(const ModelConfig& config, const Checkpoint& checkpoint) {
  std::set<std::string> known;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    known.insert(tensor.name);
  }
  for (const std::string& tensor_name : checkpoint.names()) {
    if (!known.contains(tensor_name) && !may_be_ignored(tensor_name, config) &&
        !checkpoint.is_zero_bias(tensor_name)) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.describe(tensor_name), ": no ",
                                                     config.architecture,
                                                     " with this configuration has this tensor"));
    }
  }
  return absl::OkStatus();
}

// Returns: the input order of a quantised matrix; empty for others.
std::span<const int32_t> order_of(const StoredTensor& stored) {
  return stored.matrix == nullptr ? std::span<const int32_t>() : stored.matrix->input_order;
}

// Blocks do not cross ranks, so that each rank holds blocks of the whole model.
absl::Status check_splits_between_blocks(const ExpectedTensor& tensor, WeightFormat format,
                                         const StoredTensor& stored, int32_t ranks) {
  const int64_t block = encoding(format).undivided_inputs();
  const bool split = tensor.shape.size() > 1 && tensor.cols < tensor.shape[1];
  if (split && !order_of(stored).empty() && weight_format(stored) == format) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.name, ": ", ranks, " ranks cannot share its ", tensor.shape[1],
                     " inputs: their groups are in an order of their own (act-order)"));
  }
  if (block == 0 || !split || tensor.cols % block == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      tensor.name, ": ", ranks, " ranks cannot share its ", tensor.shape[1], " inputs: weights of ",
      std::string(name(format)), " have blocks of ", block, " inputs"));
}

// Chooses formats by a checkpoint's tensors.
class Chooser {
 public:
  Chooser(const SlotParts& parts, std::optional<WeightFormat> format)
      : parts_(parts), format_(format) {}

  // Returns: runs of neighbours that have one format and are read in one way.
  std::vector<PlannedRun> runs(const WeightShape& shape) const {
    std::vector<PlannedRun> runs;
    for (const SlotPart& part : parts_.at({shape.index, shape.slot})) {
      const WeightFormat own = format_of(shape, *part.stored);
      const bool keeps = is_quantized(*part.stored) && weight_format(*part.stored) == own;
      const auto order = keeps ? order_of(*part.stored) : std::span<const int32_t>();
      if (runs.empty() || runs.back().format != own || runs.back().keeps_codes != keeps ||
          !std::ranges::equal(runs.back().input_order, order)) {
        runs.push_back({own, keeps, part.expected->first_row, 0, order});
      }
      runs.back().rows += part.expected->rows;
    }
    return runs;
  }

  WeightFormat format_of(const WeightShape& shape, const StoredTensor& stored) const {
    // A router is small, and its errors choose other experts.
    if (shape.kind == WeightKind::table || shape.slot == WeightSlot::router) {
      return stored.matrix != nullptr ? WeightFormat::f32 : table_format(format_, stored.type);
    }
    if (!format_) {
      return weight_format(stored);
    }
    return shape.slot == WeightSlot::head ? head_format(*format_) : *format_;
  }

 private:
  const SlotParts& parts_;
  std::optional<WeightFormat> format_;
};

absl::Status no_kernels(const Backend& backend, WeightFormat format, const std::string& of) {
  return absl::InvalidArgumentError(absl::StrCat("weights: the backend ", backend.name,
                                                 " has no kernels for weights of ",
                                                 std::string(name(format)), of));
}

// Errors: a run that the backend has no kernels for; names its tensor.
absl::Status check_kernels(const PlannedSlot& slot, const SlotParts& parts,
                           const Checkpoint& checkpoint, const Backend& backend) {
  for (const PlannedRun& run : slot.runs) {
    const bool packs = !run.keeps_codes || backend.pack_codes != nullptr;
    if (packs && backend.packed_weight_bytes(run.format, run.rows, slot.shape.cols) > 0) continue;
    for (const SlotPart& part : parts.at({slot.shape.index, slot.shape.slot})) {
      if (part.expected->first_row != run.first_row) continue;
      return no_kernels(
          backend, run.format,
          absl::StrCat(": ", checkpoint.describe(part.expected->name), " (",
                       std::string(kept_type(*part.stored)), "); --weights f16 converts it"));
    }
  }
  return absl::OkStatus();
}

// How a checkpoint becomes the weights of one rank.
struct Plan {
  std::vector<ExpectedTensor> expected;
  SlotParts parts;  // refer to `expected` and to the checkpoint
  std::vector<PlannedSlot> slots;
};

absl::Status check_slots(const Plan& plan, const Chooser& chooser, int32_t ranks,
                         const Checkpoint& checkpoint, const Backend& backend) {
  for (const PlannedSlot& slot : plan.slots) {
    TESSERA_RETURN_IF_ERROR(check_kernels(slot, plan.parts, checkpoint, backend));
    for (const SlotPart& part : plan.parts.at({slot.shape.index, slot.shape.slot})) {
      TESSERA_RETURN_IF_ERROR(check_splits_between_blocks(
          *part.expected, chooser.format_of(slot.shape, *part.stored), *part.stored, ranks));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> plan_of(const ModelConfig& config, Shard shard, const Checkpoint& checkpoint,
                             std::optional<WeightFormat> format, const Backend& backend) {
  // Some products need sides that are multiples of 16.
  if (format && backend.packed_weight_bytes(*format, kPackRows, kPackRows) == 0) {
    return no_kernels(backend, *format, "");
  }
  Plan plan{.expected = expected_tensors(config, shard), .parts = {}, .slots = {}};
  TensorType embedding = TensorType::f32;  // as which the table is read
  for (const ExpectedTensor& tensor : plan.expected) {
    TESSERA_ASSIGN_OR_RETURN(const StoredTensor* stored,
                             checkpoint.tensor(tensor.name, tensor.shape));
    plan.parts[{tensor.index, tensor.slot}].push_back({stored, &tensor});
    if (tensor.slot == WeightSlot::embedding) {
      embedding = stored->matrix == nullptr ? stored->type : TensorType::f32;
    }
  }
  const Chooser chooser(plan.parts, format ? format : stored_format(checkpoint));
  plan.slots = plan_slots(
      shard_config(config, shard.ranks),
      [&](const WeightShape& shape) { return chooser.runs(shape); },
      embedding_type(format, embedding), backend);
  TESSERA_RETURN_IF_ERROR(check_slots(plan, chooser, shard.ranks, checkpoint, backend));
  TESSERA_RETURN_IF_ERROR(check_nothing_unexpected(config, checkpoint));
  return plan;
}

std::string formats_of(const WeightViews& views) {
  std::set<std::string> formats;
  const auto add = [&](const StackedWeight& stacked) {
    for (const PackedWeight& part : stacked.all()) formats.emplace(name(part.format));
  };
  for (const LayerWeights& layer : views.layers) {
    add(layer.qkv);
    add(layer.attention_out);
    std::ranges::for_each(layer.gate_up, add);
    std::ranges::for_each(layer.down, add);
    add(layer.shared_gate_up);
    add(layer.shared_down);
  }
  add(views.head);
  return absl::StrJoin(formats, ", ");
}

}  // namespace

WeightFormat table_format(std::optional<WeightFormat> format, TensorType stored) {
  const bool keeps_more = !format || *format == WeightFormat::f32 || *format == WeightFormat::f16;
  return stored == TensorType::f32 && !keeps_more ? WeightFormat::bf16 : weight_format(stored);
}

TensorType embedding_type(std::optional<WeightFormat> format, TensorType stored) {
  const bool keeps_more = !format || *format == WeightFormat::f32 || *format == WeightFormat::f16;
  return keeps_more && stored != TensorType::bf16 ? TensorType::f32 : TensorType::bf16;
}

WeightFormat head_format(WeightFormat format) {
  return format == WeightFormat::int4 ? WeightFormat::int8 : format;
}

std::optional<WeightFormat> stored_format(const Checkpoint& checkpoint) {
  if (!checkpoint.quantised_types().empty()) return std::nullopt;
  const std::set<TensorType> types = checkpoint.matrix_types();
  if (types.size() != 1) return WeightFormat::f32;
  switch (*types.begin()) {
    case TensorType::bf16:
      return WeightFormat::bf16;
    case TensorType::f16:
      return WeightFormat::f16;
    default:
      return WeightFormat::f32;
  }
}

int64_t weight_bytes(const ModelConfig& config, WeightFormat format, TensorType stored_embedding,
                     const Backend& backend) {
  WeightViews views;
  const std::vector<PlannedSlot> slots = plan_slots(
      config,
      [&](const WeightShape& shape) { return converted_runs(shape, format, stored_embedding); },
      embedding_type(format, stored_embedding), backend);
  return place_slots(slots, config.layers, backend, nullptr, views);
}

absl::StatusOr<WeightSize> Weights::measure(const ModelConfig& config, Shard shard,
                                            const Checkpoint& checkpoint,
                                            std::optional<WeightFormat> format,
                                            const Backend& backend) {
  TESSERA_ASSIGN_OR_RETURN(const Plan plan, plan_of(config, shard, checkpoint, format, backend));
  WeightViews views;
  const int64_t bytes = place_slots(plan.slots, config.layers, backend, nullptr, views);
  return WeightSize{bytes, formats_of(views)};
}

absl::StatusOr<Weights> Weights::load(const ModelConfig& config, Shard shard,
                                      const Checkpoint& checkpoint,
                                      std::optional<WeightFormat> format, const Backend& backend,
                                      const LoadOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Plan plan, plan_of(config, shard, checkpoint, format, backend));
  Weights weights;
  const int64_t bytes = place_slots(plan.slots, config.layers, backend, nullptr, weights.views_);
  TESSERA_ASSIGN_OR_RETURN(weights.memory_, AlignedMemory::allocate(bytes, backend));
  place_slots(plan.slots, config.layers, backend, weights.memory_.data(), weights.views_);
  TESSERA_RETURN_IF_ERROR(
      WeightLoader(checkpoint, plan.parts, backend, weights.views_).load(plan.slots, options));
  return weights;
}

std::string Weights::formats() const {
  return formats_of(views_);
}

}  // namespace tessera
