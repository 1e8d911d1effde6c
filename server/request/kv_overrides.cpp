#include "server/request/kv_overrides.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/kv/kv_presets.h"
#include "server/base/error.h"

namespace tessera {
namespace {

absl::Status refused(const absl::Status& status) {
  return invalid_field("kv_cache", fmt::format("kv_cache: {}", std::string(status.message())));
}

absl::StatusOr<KvPreset> named(const std::string& name) {
  if (name.find(':') != std::string::npos) {  // fields are given separately
    return absl::InvalidArgumentError(fmt::format("there is no KV preset '{}'", name));
  }
  return parse_preset(name);
}

}  // namespace

absl::StatusOr<std::optional<KvPreset>> resolve_kv_policy(const KvOverrides& overrides,
                                                          const KvPreset& defaults) {
  if (!overrides.preset.has_value() && overrides.fields.empty()) {
    return std::nullopt;
  }
  absl::StatusOr<KvPreset> resolved = defaults;
  if (overrides.preset.has_value()) {
    resolved = named(*overrides.preset);
  }
  if (!resolved.ok()) {
    return refused(resolved.status());
  }
  const absl::StatusOr<KvPolicy> policy = edit_policy(resolved->policy, overrides.fields);
  if (!policy.ok()) {
    return refused(policy.status());
  }
  const bool changed = !(*policy == resolved->policy);
  return KvPreset{changed ? "custom" : resolved->name, *policy};
}

void KvReport::add(const Finish::Kv& kv) {
  ++sequences_;
  preset_ = kv.preset;
  sum_.bytes += kv.usage.bytes;
  sum_.f16_bytes += kv.usage.f16_bytes;
  sum_.high += kv.usage.high;
  sum_.low += kv.usage.low;
  sum_.dropped += kv.usage.dropped;
  sum_.budget_share = std::min(sum_.budget_share, kv.usage.budget_share);
}

}  // namespace tessera
