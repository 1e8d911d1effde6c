#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kv_policy.h"

namespace tessera {

// A policy as text: what clients, settings and command lines name by field.
using KvPolicyFields = std::vector<std::pair<std::string, std::string>>;

// `base` with some of its fields changed. The fields are those of KvPolicy, with formats and enums
// by name (high=k8v4, scorer=squares). A field that belongs to a rule chooses that rule: alpha_high
// and alpha_low thresholds, keep_share, keep_tokens, keep_bytes and high_share budget, mass_high
// and mass_keep mass. Of the keep_ ones the one that is given replaces the others. Errors:
// InvalidArgument names the field that is unknown, given twice, out of range, or of another rule
// than one before it.
absl::StatusOr<KvPolicy> edit_policy(const KvPolicy& base,
                                     std::span<const std::pair<std::string, std::string>> fields);

// "NAME" or "NAME:field=value:field=value"; NAME is a preset or a format (k4v8), which is then kept
// whole. Errors: as edit_policy, and for an unknown name, with the known ones.
absl::StatusOr<KvPolicy> parse_policy(std::string_view text);

// The same under its text as a name.
absl::StatusOr<KvPreset> parse_preset(std::string_view text);

// A format by name. Errors: InvalidArgument for an unknown name, with the known ones, and for that
// of a policy which is more than a format.
absl::StatusOr<KvFormat> parse_format(std::string_view text);

// Every field that has a meaning in `policy`, with its value: what is in effect.
KvPolicyFields policy_fields(const KvPolicy& policy);

}  // namespace tessera
