#include "engine/kv/kv_policy_fields.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_successors.h"

namespace tessera {
namespace {

// Parses `text` into `out`. Returns: false if it is not a value of that type.
bool read(std::string_view text, KvFormat& out) {
  const std::optional<KvFormat> format = kv_format_named(text);
  out = format.value_or(out);
  return format.has_value();
}

bool read(std::string_view text, float& out) {
  return absl::SimpleAtof(std::string(text), &out);
}
bool read(std::string_view text, int32_t& out) {
  return absl::SimpleAtoi(std::string(text), &out);
}
bool read(std::string_view text, int64_t& out) {
  return absl::SimpleAtoi(std::string(text), &out);
}

bool read(std::string_view text, bool& out) {
  out = text == "true";
  return out || text == "false";
}

template <class Enum>
requires std::is_enum_v<Enum>
bool read(std::string_view text, Enum& out) {
  for (int i = 0; !name_of(static_cast<Enum>(i)).empty(); ++i) {
    if (name_of(static_cast<Enum>(i)) == text) {
      out = static_cast<Enum>(i);
      return true;
    }
  }
  return false;
}

// Takes `value` for `out`. Returns: false if it is not a value of that type.
template <class T>
bool take(const KvFieldValue& value, T& out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return read(*text, out);
  }
  if constexpr (std::is_same_v<T, bool>) {
    const bool* given = std::get_if<bool>(&value);
    out = given != nullptr && *given;
    return given != nullptr;
  } else if constexpr (std::is_arithmetic_v<T>) {
    if (const auto* whole = std::get_if<int64_t>(&value)) {
      out = static_cast<T>(*whole);
      return std::is_floating_point_v<T> || std::cmp_equal(static_cast<int64_t>(out), *whole);
    }
    if constexpr (std::is_floating_point_v<T>) {
      const float* number = std::get_if<float>(&value);
      out = number == nullptr ? 0 : *number;
      return number != nullptr;
    }
  }
  return false;
}

template <class T>
KvFieldValue value_of(T value) {
  if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
    return value;
  } else if constexpr (std::is_integral_v<T>) {
    return int64_t{value};
  } else {
    return std::string(name_of(value));
  }
}

struct Field {
  std::string_view name;
  std::optional<KvRule> rule;  // that the field belongs to
  bool (*set)(KvPolicy& policy, const KvFieldValue& value);
  KvFieldValue (*get)(const KvPolicy& policy);
  bool (*applies)(const KvPolicy& policy);  // false: it has no effect in the policy
  KvKeep (*rule_of)() = nullptr;            // the field's rule with its default numbers
};

using Applies = bool (*)(const KvPolicy& policy);

constexpr bool always(const KvPolicy& /*policy*/) {
  return true;
}

bool is_lossy(const KvPolicy& policy) {
  return policy.is_lossy();
}

template <auto kMember>
constexpr Field field(std::string_view name, Applies applies = is_lossy) {
  return {name, std::nullopt,
          [](KvPolicy& policy, const KvFieldValue& value) { return take(value, policy.*kMember); },
          [](const KvPolicy& policy) { return value_of(policy.*kMember); }, applies};
}

template <class Rule, class Value>
Rule class_of(Value Rule::*);

// A number of a rule.
// Requires: `applies` is false for policies of other rules.
template <auto kMember, class Rule = decltype(class_of(kMember))>
constexpr Field number(
    std::string_view name, Applies applies = [](const KvPolicy& policy) {
      return policy.keep.is<decltype(class_of(kMember))>();
    }) {
  return {name,
          Rule::kRule,
          [](KvPolicy& policy, const KvFieldValue& value) {
            return take(value, policy.keep.as<Rule>().*kMember);
          },
          [](const KvPolicy& policy) { return value_of(policy.keep.as<Rule>().*kMember); },
          applies,
          [] { return KvKeep(Rule()); }};
}

// The amount of a budget. One replaces another.
template <class Value, auto kMake, auto kGet, auto kIs>
constexpr Field amount(std::string_view name) {
  return {name,
          KvRule::budget,
          [](KvPolicy& policy, const KvFieldValue& given) {
            Value value = 0;
            const bool is_value = take(given, value);
            policy.budget().amount = kMake(value);
            return is_value;
          },
          [](const KvPolicy& policy) { return value_of((policy.budget().amount.*kGet)()); },
          [](const KvPolicy& policy) {
            return policy.keep.is<KeepBudget>() && (policy.budget().amount.*kIs)();
          },
          [] { return KvKeep(KeepBudget()); }};
}

bool selects(const KvPolicy& policy) {
  return policy.selects();
}

constexpr Field kFields[] = {
    field<&KvPolicy::high>("high", always),
    field<&KvPolicy::low>("low", always),
    number<&KeepAll::newest>("newest",
                             [](const KvPolicy& p) { return !p.is_lossy() && p.high.is_sparse(); }),
    field<&KvPolicy::scorer>("scorer"),
    field<&KvPolicy::score_window>("score_window"),
    field<&KvPolicy::score_pool>("score_pool"),
    field<&KvPolicy::key_score>("key_score", [](const KvPolicy& p) { return p.prunes_keys(); }),
    field<&KvPolicy::section>("section", [](const KvPolicy& p) { return p.replays(); }),
    number<&KeepBudget::allocator>("allocator"),
    number<&KeepBudget::retrieval_share>("retrieval_share",
                                         [](const KvPolicy& p) { return p.reads_profile(); }),
    number<&KeepByThresholds::alpha_high>("alpha_high"),
    number<&KeepByThresholds::alpha_low>("alpha_low"),
    amount<float, KvAmount::of_share, &KvAmount::share, &KvAmount::is_share>("keep_share"),
    amount<int32_t, KvAmount::of_tokens, &KvAmount::tokens, &KvAmount::is_tokens>("keep_tokens"),
    amount<int64_t, KvAmount::of_bytes, &KvAmount::bytes, &KvAmount::is_bytes>("keep_bytes"),
    number<&KeepBudget::high_share>("high_share"),
    number<&KeepMass::mass_high>("mass_high"),
    number<&KeepMass::mass_keep>("mass_keep"),
    number<&KeepAll::read_share>("read_share", selects),
    number<&KeepAll::read_tokens>("read_tokens", selects),
    field<&KvPolicy::sinks>("sinks"),
    field<&KvPolicy::recent>("recent"),
    field<&KvPolicy::compress_generated>("compress_generated"),
};

absl::Status no_longer_served(std::string_view name, std::string_view successor) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(name), "' is no longer served: take ", std::string(successor)));
}

absl::StatusOr<const Field*> find(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFields), std::end(kFields),
                                         [&](const Field& f) { return f.name == name; });
  if (found != std::end(kFields)) {
    return found;
  }
  if (const std::optional<std::string_view> successor = kv_successor(name)) {
    return no_longer_served(name, *successor);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no field '", std::string(name), "' of a KV policy; beside its preset there are ",
      absl::StrJoin(kFields, ", ", [](std::string* out, const Field& f) { out->append(f.name); })));
}

// Gives the policy the field's rule. chosen_by: the field that chose the policy's rule, if any.
absl::Status choose_rule(const Field& field, std::string& chosen_by, KvPolicy& policy) {
  if (!field.rule.has_value()) {
    return absl::OkStatus();
  }
  const bool keeps_all = *field.rule == KvRule::keep_all;
  if (*field.rule != policy.rule()) {
    if (keeps_all || !chosen_by.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          std::string(field.name), " belongs to the rule ", std::string(name_of(*field.rule)),
          ", but ", chosen_by.empty() ? "the policy" : chosen_by, " to ",
          std::string(name_of(policy.rule())), ": choose one"));
    }
    policy.keep = field.rule_of();
  }
  chosen_by = field.name;
  return absl::OkStatus();
}

// Errors: InvalidArgument names a value that is not one of the field's.
absl::Status set_field(const Field& field, const KvFieldValue& given, KvPolicy& policy) {
  if (field.set(policy, given)) {
    return absl::OkStatus();
  }
  const std::string value = to_text(given);
  for (const std::string& retired : {absl::StrCat(std::string(field.name), "=", value), value}) {
    if (const std::optional<std::string_view> successor = kv_successor(retired)) {
      return no_longer_served(retired, *successor);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(field.name), " cannot be '", value, "'"));
}

absl::StatusOr<KvPolicy> named_policy(const std::string& name) {
  if (const std::optional<std::string_view> successor = kv_successor(name)) {
    return no_longer_served(name, *successor);
  }
  if (std::optional<KvPreset> preset = find_kv_preset(name)) {
    return preset->policy;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no KV preset or format '", name, "'; there are ",
      absl::StrJoin(kv_presets(), ", ",
                    [](std::string* out, const KvPreset& preset) { out->append(preset.name); }),
      ", and formats such as k8v4, k4v2r, s70 and s50-k4v4"));
}

}  // namespace

std::string to_text(const KvFieldValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) {
    return *flag ? "true" : "false";
  }
  if (const auto* whole = std::get_if<int64_t>(&value)) {
    return absl::StrCat(*whole);
  }
  if (const float* number = std::get_if<float>(&value)) {
    return absl::StrCat(*number);
  }
  return std::get<std::string>(value);
}

absl::StatusOr<KvPolicy> edit_policy(const KvPolicy& base,
                                     std::span<const KvPolicyFields::value_type> fields) {
  KvPolicy policy = base;
  std::string chosen_by = policy.selects() ? "read_share" : "";
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [name, value] = fields[i];
    TESSERA_ASSIGN_OR_RETURN(const Field* const field, find(name));
    if (std::any_of(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(i),
                    [&name = name](const auto& earlier) { return earlier.first == name; })) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given twice"));
    }
    TESSERA_RETURN_IF_ERROR(choose_rule(*field, chosen_by, policy));
    TESSERA_RETURN_IF_ERROR(set_field(*field, value, policy));
  }
  if (const std::string error = policy_error(policy); !error.empty()) {
    return absl::InvalidArgumentError(error);
  }
  return policy;
}

absl::StatusOr<KvPolicy> parse_policy(std::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ':');
  const absl::StatusOr<KvPolicy> base = named_policy(parts.front());
  if (!base.ok()) {
    return base;
  }
  KvPolicyFields fields;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::vector<std::string> pair = absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (pair.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", parts[i], "' in '", std::string(text), "' is not field=value"));
    }
    fields.emplace_back(pair[0], pair[1]);
  }
  return edit_policy(*base, fields);
}

absl::StatusOr<KvPreset> parse_preset(std::string_view text) {
  absl::StatusOr<KvPolicy> policy = parse_policy(text);
  if (!policy.ok()) {
    return policy.status();
  }
  return KvPreset{std::string(text), *policy};
}

absl::StatusOr<KvFormat> parse_format(std::string_view text) {
  const absl::StatusOr<KvPolicy> policy = named_policy(std::string(text));
  if (!policy.ok()) {
    return policy.status();
  }
  if (policy->is_lossy() || policy->selects()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text), "' is a policy, not a KV format"));
  }
  return policy->high;
}

KvPolicyFields policy_fields(const KvPolicy& policy) {
  KvPolicyFields out;
  for (const Field& field : kFields) {
    if (field.applies(policy)) {
      out.emplace_back(field.name, field.get(policy));
    }
  }
  return out;
}

}  // namespace tessera
