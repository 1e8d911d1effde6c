#include "eval/presets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

constexpr KvPreset kPresets[] = {
    {"f32", "keys and values in f32: the oracle", [](EngineOptions& o) { o.kv_format = kKvF32; }},
    {"f16", "keys and values in f16: the baseline", [](EngineOptions& o) { o.kv_format = kKvF16; }},
};

const KvPreset* find(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kPresets), std::end(kPresets),
                                         [&](const KvPreset& p) { return p.name == name; });
  return found == std::end(kPresets) ? nullptr : found;
}

std::string known_names() {
  return absl::StrJoin(kPresets, ", ",
                       [](std::string* out, const KvPreset& preset) { out->append(preset.name); });
}

}  // namespace

std::span<const KvPreset> kv_presets() {
  return kPresets;
}

absl::StatusOr<std::vector<KvPreset>> find_kv_presets(std::string_view list) {
  std::vector<KvPreset> presets = {*find(kReferencePreset)};
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(std::string(list), ','))) {
    const KvPreset* const preset = find(name);
    if (preset == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv: there is no preset '", name, "'; there are ", known_names()));
    }
    const bool repeated = std::any_of(presets.begin(), presets.end(),
                                      [&](const KvPreset& p) { return p.name == preset->name; });
    if (!repeated) {
      presets.push_back(*preset);
    }
  }
  return presets;
}

}  // namespace tessera
