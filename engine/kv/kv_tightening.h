#pragma once

#include <cstdint>

#include "engine/kv/slot_table.h"
#include "kernels/kv/kv_arena.h"
#include "kernels/kv/kv_compression.h"

namespace tessera {

// Tightening: when pages run out, the budgets of running sequences shrink in steps, before any
// sequence loses its slot (KV-Compress, section 4). Each step leaves three quarters of a budget,
// down to the request's floor, which is a share of the policy's own budget.
//
// A policy whose rule has no budget gets one with the first step: the share of tokens that it has
// stored until then. Later tokens follow that budget too. If such a policy has a low tier, all
// tokens that a rule may change go there.

// Returns: the share of its own budget that a sequence has after `steps` steps.
float budget_share(float floor, int32_t steps);

// Returns: the share of a slot's tokens that are stored, as a mean over its rows on all ranks.
// Requires: a compressed slot.
float stored_share(const SlotState& slot, const KvArenaShape& shape, int32_t ranks);

// Returns: the policy of a slot after `steps` steps in all; its own policy after none.
// Requires: a lossy policy; with steps, a compressed slot, and SlotState::stored_share.
KvPolicy tightened_policy(const SlotState& slot, int32_t steps, const KvArenaShape& shape);

// Returns: the compression of slot number `slot` by `policy`.
KvCompression compression_of(int32_t slot, const SlotState& state, const KvPolicy& policy);

// Returns: an upper bound of the pages that a slot holds after `compression`, over all rows.
// shared_tokens: closed tokens of each row that are in pages with further owners. They stay.
// Requires: the rule `budget`.
int64_t pages_after(const KvCompression& compression, int32_t shared_tokens,
                    const KvArenaShape& shape);

}  // namespace tessera
