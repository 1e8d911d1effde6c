#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/kv/kv_policy_fields.h"
#include "engine/request.h"

namespace tessera {

// How a request wants its keys and values to be kept, as the wires say it: a preset, or the
// server's own where there is none, and fields of it that are to be otherwise
// (engine/kv/kv_policy_fields.h).
struct KvOverrides {
  std::optional<std::string> preset;
  KvPolicyFields fields;
};

// What the engine is to be asked for; nothing for an empty wish. A preset whose fields were changed
// is named "custom". Errors: InvalidArgument names the field, with OpenAI's param "kv_cache".
absl::StatusOr<std::optional<KvPreset>> resolve_kv_policy(const KvOverrides& overrides,
                                                          const KvPreset& defaults);

// What usage says of the keys and values of a request's sequences: bytes of all of them, tokens as
// a mean over them.
class KvReport {
 public:
  void add(const Finish::Kv& kv);

  bool empty() const { return sequences_ == 0; }
  const KvPreset& preset() const { return preset_; }  // the same for all
  int64_t bytes() const { return sum_.bytes; }
  int64_t f16_bytes() const { return sum_.f16_bytes; }
  double high() const { return sum_.high / sequences_; }
  double low() const { return sum_.low / sequences_; }
  double dropped() const { return sum_.dropped / sequences_; }

 private:
  int32_t sequences_ = 0;
  KvPreset preset_;
  KvUsage sum_;
};

}  // namespace tessera
