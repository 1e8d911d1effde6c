#pragma once

#include <span>

#include "kernels/kv/token_row.h"

namespace tessera {

// Cutoffs that select a part of some keys. All of them reorder `keys`.

// Returns: the cutoff that exactly the best `count` of `keys` reach.
TokenKey cut_above_worst(std::span<TokenKey> keys, int64_t count);

// Returns: the cutoff below which the keys have a significance of at most `limit` together.
TokenKey cut_below_mass(std::span<TokenKey> keys, double limit);

}  // namespace tessera
