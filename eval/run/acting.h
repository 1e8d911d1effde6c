#pragma once

#include <cstdint>
#include <optional>

#include "engine/kv/kv_usage.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

// Returns: the first position of a sequence whose query reads keys and values that `policy` has
// changed. A quantised format changes a group when it closes, and an unquantised one all tokens. A
// rule changes tokens at the prompt's end, or when the first group leaves the protected ones. No
// value: the high tier is f16, and by `usage` at the sequence's end the rule changed nothing.
std::optional<int32_t> acted_from(const KvPolicy& policy, int32_t prompt_tokens,
                                  const KvUsage& usage);

}  // namespace tessera
