#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/device_array.h"
#include "bench/op.h"
#include "kernels/kv_arena.h"

namespace tessera::bench {

// Slots of all layers, for ops that work on whole sequences. Closed groups stand in the first of
// the arena's formats and are full of usual numbers: each page has the same ones.
class KvSlots {
 public:
  // shape.pages 0: what all slots need when they are full, and one more for each row. Gives up when
  // the device has not the memory. Requires: a context of a page's tokens, in whole groups.
  KvSlots(KvArenaShape shape, const Setup& setup);

  // So many that one who goes around `bytes` of each meets one again after setup.memory_bytes.
  static int32_t count(const Setup& setup, int64_t bytes);

  KvArena& arena() { return *arena_; }
  const Device& device() const { return device_; }
  const Backend& backend() const { return backend_; }  // of the first ISA
  Stream stream() const { return device_.stream(); }

  // Every row of `slot` gets so many more tokens, whole groups, of its high tier, which is tier 0.
  void append(int32_t slot, KvTiers tiers, int32_t tokens);
  // What a slot holds, in host memory, for kv_swap_in to bring back as often as it is wanted.
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
