#pragma once

#include <cstdint>

#include "kernels/kv/head_profile.h"

namespace tessera {

// Input of an allocator.
enum class AllocatorReads : uint8_t {
  shape,    // the policy and the sequence's length: every rank computes its rows alone
  scores,   // the token scores of one layer at a time, as a measure of each row
  pages,    // all pages of a sequence, ranked together: each backend has its own code
  profile,  // as shape, and a profile of the model's heads
};

// A row whose budget an allocator computes.
struct AllocatorRow {
  int32_t layer = 0;
  // With AllocatorReads::scores: the measure of the row, and the sum over all rows.
  double measure = 0;
  double sum = 0;
  HeadProfile profile{};  // with AllocatorReads::profile
};

}  // namespace tessera
