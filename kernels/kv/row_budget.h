#pragma once

#include <cstdint>

#include "kernels/kv/kv_compression.h"
#include "kernels/kv/kv_pool.h"

namespace tessera {

// Returns: mean budget of a row in tokens, from the policy's keep_share, keep_tokens or keep_bytes
// at the current length. A budget in bytes counts whole pages, of both tiers if there are two.
int32_t row_budget(const KvPool& pool, const KvCompression& sequence);

}  // namespace tessera
