#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/kv/slot_table.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

// Applies the policies of slots: chooses the slots, runs kv_compress, and records its results.
class KvCompressor {
 public:
  // A cache without token scores has no policy that compresses. scratch: memory for kv_compress.
  // Arguments outlive this.
  KvCompressor(KvArena& arena, SlotTable& slots, const Backend& backend, Stream stream,
               std::span<std::byte> scratch);

  // Returns: the work on those of `slots` that are due, valid until the next call. A slot is due if
  // its prompt or its replay has just become complete, or if it was handed blocks. With
  // compress_generated, it is due if a group has closed since the last compression.
  // Changes no slot.
  std::span<const KvCompression> plan(std::span<const KvSlot* const> slots);
  // Plans to tighten a slot's budget by `steps` steps.
  // ranks: over which KV heads are split.
  // Returns: the work, valid until the next call.
  // Requires: a compressed slot of a lossy policy.
  std::span<const KvCompression> plan_tightening(const KvSlot& slot, int32_t steps, int32_t ranks);
  // Runs the last plan.
  // Returns: the result for each of its entries, valid until the next call.
  std::span<const KvCompressed> run();

 private:
  static bool is_due(const SlotState& slot);

  KvArena& arena_;
  SlotTable& slots_;
  const Backend& backend_;
  const Stream stream_;
  const std::span<std::byte> scratch_;
  std::vector<KvCompression> planned_;  // [slots]
  std::vector<KvCompressed> results_;   // [slots]
};

}  // namespace tessera
