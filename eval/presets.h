#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace tessera {

// A named way to keep the KV cache: what --kv takes. A further format is one more line of the table
// in presets.cpp.
struct KvPreset {
  std::string_view name;
  std::string_view description;
  void (*apply)(EngineOptions& options);
};

// What everything is compared with.
inline constexpr std::string_view kReferencePreset = "f16";

std::span<const KvPreset> kv_presets();

// The presets of a list "f32,f16": the reference first (also if the list lacks it), then the others
// as listed, each once. Errors: InvalidArgument names a preset that there is not, and those that
// there are.
absl::StatusOr<std::vector<KvPreset>> find_kv_presets(std::string_view list);

}  // namespace tessera
