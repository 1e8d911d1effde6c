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

std::string print(float value) {
  return absl::StrCat(value);
}
std::string print(int32_t value) {
  return absl::StrCat(value);
}
std::string print(int64_t value) {
  return absl::StrCat(value);
}
std::string print(bool value) {
  return value ? "true" : "false";
}
template <class Named>
std::string print(Named value) {
  return std::string(name_of(value));
}

struct Field {
  std::string_view name;
  std::optional<KvRule> rule;  // that the field belongs to
  bool (*set)(KvPolicy& policy, std::string_view text);
  std::string (*get)(const KvPolicy& policy);
};

template <auto kMember>
constexpr Field field(std::string_view name, std::optional<KvRule> rule = std::nullopt) {
  return {name, rule,
          [](KvPolicy& policy, std::string_view text) { return read(text, policy.*kMember); },
          [](const KvPolicy& policy) { return print(policy.*kMember); }};
}

bool belongs_to(std::optional<KvRule> rule, KvRule policy_rule) {
  return !rule.has_value() || *rule == policy_rule;
}

constexpr Field kFields[] = {
    field<&KvPolicy::high>("high"),
    field<&KvPolicy::low>("low"),
    field<&KvPolicy::newest>("newest"),
    field<&KvPolicy::scorer>("scorer"),
    field<&KvPolicy::score_window>("score_window"),
    field<&KvPolicy::score_pool>("score_pool"),
    field<&KvPolicy::score_generated>("score_generated"),
    field<&KvPolicy::key_score>("key_score"),
    field<&KvPolicy::section>("section"),
    field<&KvPolicy::allocator>("allocator", KvRule::budget),
    field<&KvPolicy::retrieval_share>("retrieval_share", KvRule::budget),
    field<&KvPolicy::alpha_high>("alpha_high", KvRule::thresholds),
    field<&KvPolicy::alpha_low>("alpha_low", KvRule::thresholds),
    field<&KvPolicy::keep_share>("keep_share", KvRule::budget),
    field<&KvPolicy::keep_tokens>("keep_tokens", KvRule::budget),
    field<&KvPolicy::keep_bytes>("keep_bytes", KvRule::budget),
    field<&KvPolicy::high_share>("high_share", KvRule::budget),
    field<&KvPolicy::mass_high>("mass_high", KvRule::mass),
    field<&KvPolicy::mass_keep>("mass_keep", KvRule::mass),
    field<&KvPolicy::read_share>("read_share"),
    field<&KvPolicy::read_tokens>("read_tokens"),
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

// Clears all budgets if `field` sets one, because one budget replaces another.
void clear_budgets(KvPolicy& policy, std::string_view field) {
  if (field == "keep_share" || field == "keep_tokens" || field == "keep_bytes") {
    policy.keep_share = 0;
    policy.keep_tokens = 0;
    policy.keep_bytes = 0;
  }
}

absl::StatusOr<KvPolicy> named_policy(const std::string& name) {
  if (const std::optional<std::string_view> successor = kv_successor(name)) {
    return no_longer_served(name, *successor);
  }
  if (std::optional<KvPreset> preset = find_kv_preset(name)) {
    return std::move(preset->policy);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no KV preset or format '", name, "'; there are ",
      absl::StrJoin(kv_presets(), ", ",
                    [](std::string* out, const KvPreset& preset) { out->append(preset.name); }),
      ", and formats such as k8v4, k4v2r, s70 and s50-k4v4"));
}

}  // namespace

absl::StatusOr<KvPolicy> edit_policy(const KvPolicy& base,
                                     std::span<const std::pair<std::string, std::string>> fields) {
  KvPolicy policy = base;
  std::string chosen_by;  // the field that chose the rule
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [name, value] = fields[i];
    const absl::StatusOr<const Field*> field = find(name);
    if (!field.ok()) {
      return field.status();
    }
    if (std::any_of(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(i),
                    [&name = name](const auto& earlier) { return earlier.first == name; })) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given twice"));
    }
    const std::optional<KvRule> rule = (*field)->rule;
    const bool belongs = belongs_to(rule, policy.rule);
    if (!belongs && !chosen_by.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " belongs to the rule ", std::string(name_of(*rule)), ", but ",
                       chosen_by, " to ", std::string(name_of(policy.rule)), ": choose one"));
    }
    if (rule.has_value()) {
      policy.rule = *rule;
      chosen_by = name;
    }
    clear_budgets(policy, name);
    if (!(*field)->set(policy, value)) {
      for (const std::string& retired : {absl::StrCat(name, "=", value), value}) {
        if (const std::optional<std::string_view> successor = kv_successor(retired)) {
          return no_longer_served(retired, *successor);
        }
      }
      return absl::InvalidArgumentError(absl::StrCat(name, " cannot be '", value, "'"));
    }
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
  const auto means_something = [&](const Field& field) {
    if (field.name == "high" || field.name == "low") {
      return true;
    }
    if (field.name == "newest") {
      return !policy.is_lossy() && policy.high.is_sparse();
    }
    if (field.name == "key_score") {
      return policy.prunes_keys();
    }
    if (field.name == "section") {
      return policy.replays();
    }
    if (field.name == "read_share" || field.name == "read_tokens") {
      return policy.selects();
    }
    if (field.name == "retrieval_share" && policy.allocator != KvAllocator::retrieval) {
      return false;
    }
    const bool unused_budget = field.name.substr(0, 5) == "keep_" && field.get(policy) == "0";
    return policy.is_lossy() && !unused_budget && belongs_to(field.rule, policy.rule);
  };
  KvPolicyFields out;
  for (const Field& field : kFields) {
    if (means_something(field)) {
      out.emplace_back(field.name, field.get(policy));
    }
  }
  return out;
}

}  // namespace tessera
