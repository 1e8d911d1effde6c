#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/compress/rules.h"

namespace tessera {

// Pools the scores of a row, and raises those of windows that stand for others
// (kernels/kv/representatives.h).
// token_scores: of the row, by place in the high tier. distances: scratch, a byte for each token.
void raise_representatives(const RuleInput& input, KvTokenScore* token_scores,
                           std::span<uint8_t> distances);

}  // namespace tessera
