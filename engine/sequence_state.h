#pragma once

#include <cstdint>
#include <variant>

#include "engine/kv/kv_match.h"
#include "engine/kv/kv_slot.h"
#include "engine/kv/kv_usage.h"
#include "engine/kv/swapped_kv.h"

namespace tessera {

// What a waiting sequence knows of its prompt in the stores (engine/prefix_restore.h).
struct StoredPart {
  bool over = false;      // it is in the prefix cache, or no store has more of it
  bool was_read = false;  // a store was read for it
  bool held = false;      // it is not admitted before it was read
  int32_t matched = 0;    // blocks of its match when `over` was set
};

// Whether a sequence waits, runs with a slot, is swapped out or has finished.
//
// Waiting -> Running -> Finished. Preemption leads from Running to Waiting or SwappedOut; both wait
// for admission. Only Running has a slot, and each function that leaves this state returns it.
class SequenceState {
 public:
  struct Waiting {
    KvMatch match;  // latest match with the prefix cache, with which it will begin
    StoredPart in_stores;
  };
  struct Running {
    KvSlot slot;
    int32_t stored = 0;  // see SequenceState::stored
  };
  struct SwappedOut {
    SwappedKv kv;
    int32_t stored = 0;
  };
  struct Finished {};

  // A pointer is null in every other state, and valid until the state changes.
  Waiting* waiting() { return std::get_if<Waiting>(&state_); }
  const Waiting* waiting() const { return std::get_if<Waiting>(&state_); }
  const Running* running() const { return std::get_if<Running>(&state_); }
  const SwappedOut* swapped_out() const { return std::get_if<SwappedOut>(&state_); }

  // Number of first tokens whose keys and values are in its slot or in its swapped-out copy (some
  // may have been dropped since). 0 for a waiting sequence that is not swapped out.
  int32_t stored() const;
  // The next `count` tokens are stored, or will be in this step.
  // Requires: a running sequence.
  void store(int32_t count);
  // Tokens behind the first `stored` ones are not stored after all: they were drafted.
  // Requires: a running sequence.
  void truncate(int32_t stored);
  // Memory and precision of its last slot, and of the one that it was swapped out of.
  const KvUsage& usage() const { return usage_; }

  // Requires: waiting or swapped out.
  void admit(KvSlot slot);
  // Each takes the slot from a running sequence.
  // Returns: the slot, for KvCache::release.
  KvSlot preempt();                     // keeps the tokens only: stored() is 0
  KvSlot preempt(SwappedKv swapped);    // keeps the swapped-out copy too, and stored()
  KvSlot finish(const KvUsage& usage);  // with the final usage of its slot
  void finish();                        // Requires: a sequence without a slot

 private:
  KvSlot take_slot();

  std::variant<Waiting, Running, SwappedOut, Finished> state_;
  KvUsage usage_;
};

}  // namespace tessera
