#pragma once

#include <nlohmann/json.hpp>

#include "server/json/body_fields.h"
#include "server/request/kv_overrides.h"

namespace tessera {

// Reads "kv_cache": a preset's name, or {"preset": NAME, FIELD: VALUE, ...} with the fields of a
// policy (engine/kv/kv_policy_fields.h). resolve_kv_policy() checks the values.
void read_kv_cache(BodyFields& fields, KvOverrides& out);

// Returns: "kv_cache" of the usage: the policy in effect and its fields, bytes, tokens.
nlohmann::ordered_json kv_cache_json(const KvReport& report);

}  // namespace tessera
