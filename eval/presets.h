#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kv_policy.h"

namespace tessera {

// A way to keep the KV cache as --kv names it: a preset, a format, or one with other numbers.
struct EvalPreset {
  std::string name;  // as it was given: "k8v4", "leankv:alpha_high=2"
  KvPolicy policy;
};

// What everything is compared with.
inline constexpr std::string_view kReferencePreset = "f16";

// The presets of a list "f32,leankv:sinks=8" (parse_policy, engine/kv/kv_policy_fields.h): the
// reference first (also if the list lacks it), then the others as listed, each once. Errors:
// InvalidArgument names a preset or field that there is not, and those that there are.
absl::StatusOr<std::vector<EvalPreset>> find_eval_presets(std::string_view list);

}  // namespace tessera
