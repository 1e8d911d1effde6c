#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/config/model_config.h"
#include "models/config/shard.h"
#include "models/lora/lora_file.h"
#include "models/lora/product.h"
#include "models/weights/aligned_memory.h"
#include "models/weights/weights.h"

namespace tessera {

// The model that an adapter belongs to. Not owned.
struct LoraBase {
  const ModelConfig& whole;  // of all ranks
  Shard shard;
  const WeightViews& weights;
  const Backend& backend;
};

// The low-rank matrices of an adapter, packed once for a backend. Beside f32 weights they are f32,
// so that logits are those of the merged model up to rounding. Beside all other weights they are
// bf16: the weights have lost more than that, and a step of many adapters is bound by their bytes.
// A rank has the rows of B, or the columns of A, that belong to its part of the weights. Immutable,
// so any number of steps may use it.
class LoraAdapter {
 public:
  // Returns: the bytes that load() will allocate. Checks names and shapes, reads no number.
  // Errors: those of LoraFile::open; Unimplemented for a tensor whose changes are not supported (a
  // norm, lm_head, an expert); NotFound for one that the model does not have; InvalidArgument for a
  // shape, with the expected one. Each names file and tensor.
  static absl::StatusOr<int64_t> measure(const std::filesystem::path& path, const LoraBase& base);

  // Errors: those of measure(); InvalidArgument for a number that is not finite; ResourceExhausted.
  static absl::StatusOr<std::shared_ptr<const LoraAdapter>> load(const std::filesystem::path& path,
                                                                 const LoraBase& base);

  const LoraLayer& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  int64_t bytes() const { return memory_.size(); }
  // Returns: SHA-256 of the matrices with their names and scales, 32 bytes. Adapters with the same
  // one compute the same numbers.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  LoraAdapter() = default;

  AlignedMemory memory_;
  std::vector<LoraLayer> layers_;
  std::string fingerprint_;
};

}  // namespace tessera
