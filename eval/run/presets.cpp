#include "eval/run/presets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/kv/kv_policy_fields.h"
#include "engine/kv/kv_presets.h"

namespace tessera {

absl::StatusOr<std::vector<EvalPreset>> find_eval_presets(std::string_view list) {
  std::vector<EvalPreset> presets = {{std::string(kReferencePreset), kKvPresetF16.policy}};
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(std::string(list), ','))) {
    const absl::StatusOr<KvPolicy> policy =
        name == kKvPresetF32.name ? kKvPresetF32.policy : parse_policy(name);
    if (!policy.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv: ", std::string(policy.status().message())));
    }
    if (std::none_of(presets.begin(), presets.end(),
                     [&](const EvalPreset& preset) { return preset.name == name; })) {
      presets.push_back({name, *policy});
    }
  }
  return presets;
}

}  // namespace tessera
