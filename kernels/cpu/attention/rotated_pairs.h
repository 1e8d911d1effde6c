#pragma once

#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

// Rotated formats (kernels/kv/rotation.h) in attention. Codes of a rotated tile are multiplied by
// codes of rotated queries, and its values are added to rotated sums. Tiles of a row change between
// rotated and plain once or twice: from tier to tier, and to the dense group. Only then are query
// codes made again and sums rotated, so the kernels of tiles know nothing of rotations.

// Stores the query codes of all pairs, rotated or plain, times `factor`.
// Requires: block.query_rows of all pairs.
void load_query_codes(const AttentionKernels& kernels, PairBlock& block, bool rotated,
                      float factor);

// Stores the query codes again if a tile of `format` needs the others.
inline void turn_query_codes(const AttentionKernels& kernels, PairBlock& block, KvFormat format,
                             float factor) {
  if (format.is_codes() && format.rotated != block.rotated_codes) {
    load_query_codes(kernels, block, format.rotated, factor);
  }
}

// Rotates the sums of values of all pairs unless they are `rotated` as needed. Sums of zeros are
// numbers of every channel, so they are added to the values first.
void turn_values(const AttentionKernels& kernels, PairBlock& block, bool rotated);

}  // namespace tessera
