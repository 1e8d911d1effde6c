#pragma once

#include "server/request/kv_overrides.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// Returns: the fields that are set in `message`. They have the names of the fields of a policy
// (engine/kv/kv_policy_fields.h).
KvOverrides parse_kv_options(const v1::KvOptions& message);

v1::KvUsage to_wire(const KvReport& report);

}  // namespace tessera
