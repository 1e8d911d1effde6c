#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/kv/kv_policy_fields.h"
#include "engine/kv/kv_presets.h"
#include "engine/request.h"

namespace tessera {

// KV overrides of a request, as both front ends parse them: a preset, or the server's own if there
// is none, and new values for fields of it (engine/kv/kv_policy_fields.h).
struct KvOverrides {
  std::optional<std::string> preset;
  KvPolicyFields fields;
};

// Returns: the preset for the engine; nothing if there are no overrides. A preset with changed
// fields is named "custom".
// Errors: InvalidArgument names the field, with OpenAI's param "kv_cache".
absl::StatusOr<std::optional<KvPreset>> resolve_kv_policy(const KvOverrides& overrides,
                                                          const KvPreset& defaults);

// KV usage of a request's sequences: bytes of all of them, tokens as a mean over them.
class KvReport {
 public:
  void add(const Finish::Kv& kv);

  bool empty() const { return sequences_ == 0; }
  const KvPreset& preset() const { return preset_; }  // the same for all sequences
  int64_t bytes() const { return sum_.bytes; }
  int64_t f16_bytes() const { return sum_.f16_bytes; }
  double high() const { return sum_.high / sequences_; }
  double low() const { return sum_.low / sequences_; }
  double dropped() const { return sum_.dropped / sequences_; }
  double budget_share() const { return sum_.budget_share; }  // the least of all sequences

 private:
  int32_t sequences_ = 0;
  KvPreset preset_;
  KvUsage sum_;
};

}  // namespace tessera
