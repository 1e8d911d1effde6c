#pragma once

#include <cstdint>
#include <filesystem>

#include "absl/status/statusor.h"

namespace tessera {

// What the forward pass needs of PEFT's adapter_config.json.
struct PeftConfig {
  int32_t rank = 0;
  float scale = 0;  // lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora
};

// Errors: NotFound; InvalidArgument (a field that is missing or out of range); Unimplemented (a
// setting that changes more than B A, such as use_dora or modules_to_save). Each names file and
// field.
absl::StatusOr<PeftConfig> read_peft_config(const std::filesystem::path& file);

}  // namespace tessera
