#pragma once

#include <nlohmann/json.hpp>

#include "server/kv_overrides.h"
#include "server/openai/body_fields.h"

namespace tessera {

// "kv_cache": a preset's name, or {"preset": NAME, FIELD: VALUE, ...} with the fields of a policy
// (engine/kv/kv_policy_fields.h). What they may be is for resolve_kv_policy to say.
void read_kv_cache(BodyFields& fields, KvOverrides& out);

// What usage has: policy and its fields as in effect, bytes, tokens.
nlohmann::ordered_json kv_cache_json(const KvReport& report);

}  // namespace tessera
