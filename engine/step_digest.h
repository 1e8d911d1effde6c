#pragma once

#include <cstdint>
#include <span>

#include "engine/candidate.h"
#include "engine/kv/kv_cache.h"
#include "engine/sequence.h"

namespace tessera {

// Returns: a hash over all inputs of a plan and over the last token of each sequence. Ranks with
// equal digests plan the same step (Ranks::verify_identical).
// Requires: candidates and sequences are parallel.
uint64_t step_digest(std::span<const Candidate> candidates, Sequences sequences,
                     const KvAccounting& accounting);

}  // namespace tessera
