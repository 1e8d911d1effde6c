#pragma once

#include <cstdint>

namespace tessera {

// Input of an allocator.
enum class AllocatorReads : uint8_t {
  shape,   // the policy and the sequence's length: every rank computes its rows alone
  scores,  // the token scores of one layer at a time, as a measure of each row
  pages,   // all pages of a sequence, ranked together: each backend has its own code
};

}  // namespace tessera
