#include "models/weights/weight_plan.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {
namespace {

// Returns: null for a weight outside the layers.
LayerWeights* layer_of(WeightViews& views, const WeightShape& shape) {
  const int32_t layer = shape.index.layer;
  return layer == TensorIndex::kNone ? nullptr : &views.layers[static_cast<size_t>(layer)];
}

// Returns: the product of the shape's expert; the only one of a dense block.
StackedWeight& of_expert(std::vector<StackedWeight>& all, const WeightShape& shape) {
  const auto expert = static_cast<size_t>(std::max(shape.index.expert, 0));
  if (all.size() <= expert) {
    all.resize(expert + 1);
  }
  return all[expert];
}

PackedWeight place_run(const PlannedRun& run, int64_t cols, const Backend& backend,
                       MemoryCutter& cutter) {
  PackedWeight weight{run.format, run.rows, cols,
                      cutter.bytes(backend.packed_weight_bytes(run.format, run.rows, cols))};
  if (!run.input_order.empty()) {
    const std::span<int32_t> order = cutter.array<int32_t>(cols);
    if (!order.empty()) {
      put(backend, run.input_order, order.data());
      weight.input_order = order.data();
    }
  }
  return weight;
}

void place_table(const PlannedSlot& slot, const Backend& backend, MemoryCutter& cutter,
                 WeightViews& views) {
  const WeightShape& shape = slot.shape;
  if (!slot.runs.empty()) {
    views.embedding_packed = place_run(slot.runs.front(), shape.cols, backend, cutter);
  } else if (slot.elements == TensorType::f32) {
    views.embedding_f32 = cutter.matrix<float>(shape.rows, shape.cols);
  } else {
    views.embedding = cutter.matrix<bf16>(shape.rows, shape.cols);
  }
}

void place_matrix(const PlannedSlot& slot, const Backend& backend, MemoryCutter& cutter,
                  WeightViews& views) {
  StackedWeight& stacked = matrix_of(views, slot.shape);
  if (slot.is_the_table) {
    stacked.add(views.embedding_packed);
    return;
  }
  for (const PlannedRun& run : slot.runs) {
    stacked.add(place_run(run, slot.shape.cols, backend, cutter));
  }
}

// Cuts the memory of one slot. Called first with a measuring cutter, then with a cutting one.
void place(const PlannedSlot& slot, const Backend& backend, MemoryCutter& cutter,
           WeightViews& views) {
  switch (slot.shape.kind) {
    case WeightKind::table:
      return place_table(slot, backend, cutter, views);
    case WeightKind::vector:
      vector_of(views, slot.shape) = cutter.array<float>(slot.shape.rows);
      return;
    case WeightKind::matrix:
      return place_matrix(slot, backend, cutter, views);
  }
}

bool same_format(const std::vector<PlannedRun>& a, const std::vector<PlannedRun>& b) {
  return a.size() == 1 && b.size() == 1 && a.front().format == b.front().format;
}

}  // namespace

StackedWeight& matrix_of(WeightViews& views, const WeightShape& shape) {
  LayerWeights* layer = layer_of(views, shape);
  switch (shape.slot) {
    case WeightSlot::qkv:
      return layer->qkv;
    case WeightSlot::attention_out:
      return layer->attention_out;
    case WeightSlot::router:
      return layer->router;
    case WeightSlot::gate_up:
      return of_expert(layer->gate_up, shape);
    case WeightSlot::down:
      return of_expert(layer->down, shape);
    case WeightSlot::shared_gate_up:
      return layer->shared_gate_up;
    case WeightSlot::shared_down:
      return layer->shared_down;
    default:
      break;
  }
  TESSERA_CHECK(shape.slot == WeightSlot::head, "a slot that is no matrix");
  return views.head;
}

std::span<float>& vector_of(WeightViews& views, const WeightShape& shape) {
  LayerWeights* layer = layer_of(views, shape);
  switch (shape.slot) {
    case WeightSlot::attention_norm:
      return layer->attention_norm;
    case WeightSlot::qkv_bias:
      return layer->qkv_bias;
    case WeightSlot::query_norm:
      return layer->query_norm;
    case WeightSlot::key_norm:
      return layer->key_norm;
    case WeightSlot::attention_out_bias:
      return layer->attention_out_bias;
    case WeightSlot::gate_up_bias:
      return layer->gate_up_bias;
    case WeightSlot::down_bias:
      return layer->down_bias;
    case WeightSlot::norm_behind_attention:
      return layer->norm_behind_attention;
    case WeightSlot::ffn_norm:
      return layer->ffn_norm;
    case WeightSlot::norm_behind_ffn:
      return layer->norm_behind_ffn;
    default:
      break;
  }
  TESSERA_CHECK(shape.slot == WeightSlot::final_norm, "a slot that is no vector");
  return views.final_norm;
}

std::vector<PlannedSlot> plan_slots(const ModelConfig& config, const ChooseRuns& choose,
                                    TensorType table, const Backend& backend) {
  std::vector<PlannedSlot> slots;
  std::vector<PlannedRun> packed_table;
  for (const WeightShape& shape : weight_shapes(config)) {
    PlannedSlot& slot = slots.emplace_back();
    slot.shape = shape;
    slot.elements = table;
    if (shape.kind != WeightKind::vector) {
      slot.runs = choose(shape);
    }
    if (shape.kind == WeightKind::table) {
      const bool packed = backend.looks_up != nullptr && backend.looks_up(slot.runs.front().format);
      slot.runs.resize(packed ? 1 : 0);
      packed_table = slot.runs;
    }
    slot.is_the_table =
        shape.slot == WeightSlot::head && config.tied_head && same_format(slot.runs, packed_table);
  }
  return slots;
}

std::vector<PlannedRun> converted_runs(const WeightShape& shape, WeightFormat format,
                                       TensorType stored_table) {
  const bool keeps_its_own = shape.kind == WeightKind::table || shape.slot == WeightSlot::router;
  const WeightFormat own = keeps_its_own                    ? table_format(format, stored_table)
                           : shape.slot == WeightSlot::head ? head_format(format)
                                                            : format;
  return {{.format = own, .first_row = 0, .rows = shape.rows}};
}

int64_t place_slots(std::span<const PlannedSlot> slots, int32_t layers, const Backend& backend,
                    std::byte* base, WeightViews& views) {
  MemoryCutter cutter(base);
  views = {};
  views.layers.resize(static_cast<size_t>(layers));
  for (int32_t layer = 0; layer < layers; ++layer) {
    views.layers[static_cast<size_t>(layer)].layer = layer;
  }
  for (const PlannedSlot& slot : slots) {
    place(slot, backend, cutter, views);
  }
  return cutter.used();
}

}  // namespace tessera
