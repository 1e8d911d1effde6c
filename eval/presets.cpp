#include "eval/presets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/kv/kv_policy_fields.h"
#include "engine/kv/kv_presets.h"
#include "eval/paper_settings.h"

namespace tessera {

namespace {

// Returns: the policy that a name of --kv stands for.
std::string policy_of(const std::string& name) {
  for (const PaperSetting& setting : paper_settings()) {
    if (setting.name == name) {
      return std::string(setting.policy);
    }
  }
  return name;
}

// Returns: the names of a list, with all paper settings in place of "papers".
std::vector<std::string> expand(std::string_view list) {
  std::vector<std::string> names;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(std::string(list), ','))) {
    if (name != "papers") {
      names.push_back(name);
      continue;
    }
    for (const PaperSetting& setting : paper_settings()) {
      names.emplace_back(setting.name);
    }
  }
  return names;
}

}  // namespace

absl::StatusOr<std::vector<EvalPreset>> find_eval_presets(std::string_view list) {
  std::vector<EvalPreset> presets = {{std::string(kReferencePreset), kKvPresetF16.policy}};
  for (const std::string& name : expand(list)) {
    const absl::StatusOr<KvPolicy> policy =
        name == kKvPresetF32.name ? kKvPresetF32.policy : parse_policy(policy_of(name));
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
