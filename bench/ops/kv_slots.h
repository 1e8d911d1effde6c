#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/device_array.h"
#include "bench/op.h"
#include "kernels/kv/kv_arena.h"

namespace tessera::bench {

// Slots over all layers, for ops that work on whole sequences. Closed groups use the arena's first
// format. All pages hold the same typical values. The device outlives it.
class KvSlots {
 public:
  // shape.pages 0: enough pages for all slots at full length, and one more for each row of a slot.
  // Requires: shape.context is at least the tokens of one page, in whole groups.
  // Errors: exits with a message if the device has not enough memory.
  KvSlots(KvArenaShape shape, const Setup& setup);

  // Returns: number of slots, two or more, so that a cycle over `bytes` of each covers
  // setup.memory_bytes.
  static int32_t count(const Setup& setup, int64_t bytes);

  KvArena& arena() { return *arena_; }
  const Device& device() const { return device_; }
  const Backend& backend() const { return backend_; }  // backend of the first ISA
  Stream stream() const { return device_.stream(); }

  // Appends `tokens` tokens, whole groups, to every row of `slot`, in its high tier.
  // Requires: the high tier is tier 0.
  void append(int32_t slot, KvTiers tiers, int32_t tokens);
  // Returns: a snapshot of the slot in host memory. kv_swap_in can restore it any number of times.
  std::vector<std::byte> save(int32_t slot, KvTiers tiers, int32_t tokens);
  void load(int32_t slot, KvTiers tiers, int32_t tokens, std::vector<std::byte>& snapshot);
  void release(std::span<const int32_t> slots);

 private:
  std::vector<std::byte> usual_page();

  const Device& device_;
  const Backend& backend_;
  std::unique_ptr<KvArena> arena_;
  std::vector<std::byte> usual_page_;
};

}  // namespace tessera::bench
