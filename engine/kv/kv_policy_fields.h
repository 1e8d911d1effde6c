#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/kv_presets.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

// A value of a policy's field, as clients send it and get it back. A command line has texts alone,
// so a text may also be that of a number or a switch.
using KvFieldValue = std::variant<bool, int64_t, float, std::string>;

// Returns: the value as a command line has it.
std::string to_text(const KvFieldValue& value);

using KvPolicyFields = std::vector<std::pair<std::string, KvFieldValue>>;

// Returns: `base` with some of its fields changed. The fields are those of KvPolicy and of its
// rule; formats and enums are given by name (high=k8v4, scorer=squares). A field that belongs to a
// rule chooses that rule:
//   thresholds: alpha_high, alpha_low
//   budget: allocator, retrieval_share, keep_share, keep_tokens, keep_bytes, high_share
//   mass: mass_high, mass_keep
// The last keep_ field counts. Those of keep_all, which are newest, read_share and read_tokens, do
// not change a policy of another rule.
// Errors: InvalidArgument names the field that is unknown, given twice, out of range, or of another
// rule than an earlier field.
absl::StatusOr<KvPolicy> edit_policy(const KvPolicy& base,
                                     std::span<const KvPolicyFields::value_type> fields);

// Parses "NAME" or "NAME:field=value:field=value". NAME is a preset or a format (k4v8); a format
// means a uniform policy that is not lossy.
// Errors: those of edit_policy; InvalidArgument for an unknown name, with the known ones.
absl::StatusOr<KvPolicy> parse_policy(std::string_view text);

// The same as a preset, whose name is `text`.
absl::StatusOr<KvPreset> parse_preset(std::string_view text);

// Parses the name of a format.
// Errors: InvalidArgument for an unknown name, with the known ones, and for the name of a lossy
// policy.
absl::StatusOr<KvFormat> parse_format(std::string_view text);

// Returns: every field that has an effect in `policy`, with its value.
KvPolicyFields policy_fields(const KvPolicy& policy);

}  // namespace tessera
