#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kv/head_profile.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

// A KV policy as named by --kv: a preset, a format, or a preset with other numbers.
struct EvalPreset {
  std::string name;  // as given: "k8v4", "leankv:alpha_high=2"
  KvPolicy policy;
  // [layers, KV heads]. No value: the profile beside the checkpoint.
  std::optional<std::vector<HeadProfile>> head_profiles = std::nullopt;
};

// Returns: true if all of its formats are of codes, so that residual buffers may be.
inline bool stores_codes(const KvPolicy& policy) {
  return policy.high.is_codes() && policy.low.is_codes();
}

// Reference of all comparisons.
inline constexpr std::string_view kReferencePreset = "f16";

// Parses a list such as "f32,leankv:sinks=8" (parse_policy, engine/kv/kv_policy_fields.h).
// Returns: the reference first (also if the list lacks it), then the others in the order of the
// list, without duplicates.
// Errors: InvalidArgument names the unknown preset or field, and the known ones.
absl::StatusOr<std::vector<EvalPreset>> find_eval_presets(std::string_view list);

}  // namespace tessera
