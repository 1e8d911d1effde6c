#pragma once

#include <cstdint>

#include "eval/lab/cache.h"

namespace tessera::lab {

// Rows of all KV heads of a layer side by side, for methods that treat them together.
// Requires: the heads keep the same tokens.

enum class Part { keys, values };

// Returns: entries [first, first + count), [count, kv_heads * head_dim].
Rows layer_rows(const Cache& cache, int32_t layer, Part part, int32_t first, int32_t count);

// Replaces the entries from `first` on.
void set_layer_rows(Cache& cache, int32_t layer, Part part, int32_t first, const Rows& rows);

}  // namespace tessera::lab
