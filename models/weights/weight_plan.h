#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "files/stored_tensor.h"
#include "kernels/backend.h"
#include "models/weights/aligned_memory.h"
#include "models/weights/tensor_table.h"
#include "models/weights/weights.h"

namespace tessera {

// Consecutive rows of a slot that are one packed weight.
struct PlannedRun {
  WeightFormat format = WeightFormat::f32;
  bool keeps_codes = false;  // the checkpoint's integers; else numbers are converted
  int64_t first_row = 0;
  int64_t rows = 0;
  std::span<const int32_t> input_order = {};  // of a packed weight; empty: none. Not owned
};

// A slot and how it is stored.
struct PlannedSlot {
  WeightShape shape;
  std::vector<PlannedRun>
      runs;  // matrices; the table if `embed` looks up packed rows of its format
  TensorType elements = TensorType::f32;  // of a table without runs
  bool is_the_table = false;              // a head that shares the embedding's memory
};

// Chooses the runs of a slot that is a matrix or the table.
using ChooseRuns = std::function<std::vector<PlannedRun>(const WeightShape&)>;

// Returns: the slots of a model in the order of memory. `config` is one rank's (shard_config()).
// table: element type of a table whose rows cannot be looked up packed
std::vector<PlannedSlot> plan_slots(const ModelConfig& config, const ChooseRuns& choose,
                                    TensorType table, const Backend& backend);

// Runs of a slot that is converted to `format`.
std::vector<PlannedRun> converted_runs(const WeightShape& shape, WeightFormat format,
                                       TensorType stored_table);

// Sets the views of all slots in the memory at `base`; a null base only measures.
// Returns: bytes used.
int64_t place_slots(std::span<const PlannedSlot> slots, int32_t layers, const Backend& backend,
                    std::byte* base, WeightViews& views);

// Returns: the view of a slot. Requires: its kind.
StackedWeight& matrix_of(WeightViews& views, const WeightShape& shape);
std::span<float>& vector_of(WeightViews& views, const WeightShape& shape);

}  // namespace tessera
