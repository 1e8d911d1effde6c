#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/op.h"
#include "kernels/kv_arena.h"

namespace tessera::bench {

// Slots of all layers, for ops that work on whole sequences. Closed groups stand in the first of
// the arena's formats and are full of usual numbers: each page has the same ones.
class KvSlots {
 public:
  // shape.pages 0: what all slots need when they are full, and one more for each row. Gives up when
  // the system has not the memory. Requires: a context of a page's tokens, in whole groups.
  KvSlots(KvArenaShape shape, const Setup& setup);

  // So many that one who goes around `bytes` of each meets one again after setup.memory_bytes.
  static int32_t count(const Setup& setup, int64_t bytes);

  KvArena& arena() { return *arena_; }
  const Backend& backend() const { return backend_; }  // of the first ISA
  Stream stream() const { return stream_; }

  // Every row of `slot` gets so many more tokens, whole groups, of its high tier, which is tier 0.
  void append(int32_t slot, KvTiers tiers, int32_t tokens);
  void release(std::span<const int32_t> slots);

 private:
  std::vector<std::byte> usual_page();

  const Backend& backend_;
  Stream stream_;
  std::unique_ptr<KvArena> arena_;
  std::vector<std::byte> usual_page_;
};

}  // namespace tessera::bench
