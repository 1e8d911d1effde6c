#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/lora/adapter.h"
#include "models/lora/lora_file.h"
#include "models/lora/product.h"
#include "models/weights/tensor_table.h"

namespace tessera {

// One matrix pair of a product and the part of it that a rank holds.
struct PlannedLoraPart {
  const LoraPair* pair = nullptr;  // not owned
  ExpectedTensor tensor;           // that it changes
  int64_t first_rank = 0;          // of its A among those of the product
};

// A product of a layer that an adapter changes.
struct PlannedLoraProduct {
  int32_t layer = 0;
  LowRankProduct LoraLayer::*product = nullptr;
  WeightFormat format = WeightFormat::f32;
  std::vector<PlannedLoraPart> parts;  // not empty; those of one A follow each other
  int64_t ranks = 0;                   // of all A
  int64_t inputs = 0;
};

// Returns: the products that the file changes, by layer.
// Errors: as LoraAdapter::measure, without those of the file.
absl::StatusOr<std::vector<PlannedLoraProduct>> plan_lora(const LoraFile& file,
                                                          const LoraBase& base);

// Sets the views of planned products in the memory at `base`; a null base only measures.
// Returns: bytes used.
int64_t place_lora(const std::vector<PlannedLoraProduct>& plan, const Backend& backend,
                   std::byte* base, std::vector<LoraLayer>& layers);

}  // namespace tessera
