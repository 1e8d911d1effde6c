#include "engine/sequence_state.h"

#include <utility>

#include "base/check.h"

namespace tessera {

int32_t SequenceState::stored() const {
  if (const Running* running = this->running()) {
    return running->stored;
  }
  const SwappedOut* swapped = swapped_out();
  return swapped != nullptr ? swapped->stored : 0;
}

void SequenceState::store(int32_t count) {
  truncate(stored() + count);
}

void SequenceState::truncate(int32_t stored) {
  Running* running = std::get_if<Running>(&state_);
  TESSERA_CHECK(running != nullptr, "a sequence without a slot stores tokens");
  running->stored = stored;
}

void SequenceState::admit(KvSlot slot) {
  TESSERA_CHECK(waiting() != nullptr || swapped_out() != nullptr,
                "only a waiting sequence is admitted");
  state_ = Running{std::move(slot), stored()};
}

// Requires: the caller sets the next state at once, so no empty handle stays behind.
KvSlot SequenceState::take_slot() {
  Running* running = std::get_if<Running>(&state_);
  TESSERA_CHECK(running != nullptr, "a sequence without a slot releases one");
  return std::move(running->slot);
}

KvSlot SequenceState::preempt() {
  KvSlot slot = take_slot();
  state_ = Waiting{};
  return slot;
}

KvSlot SequenceState::preempt(SwappedKv swapped) {
  KvSlot slot = take_slot();
  usage_ = swapped.usage();
  state_ = SwappedOut{std::move(swapped), stored()};
  return slot;
}

KvSlot SequenceState::finish(const KvUsage& usage) {
  KvSlot slot = take_slot();
  usage_ = usage;
  state_ = Finished{};
  return slot;
}

void SequenceState::finish() {
  TESSERA_CHECK(running() == nullptr, "a sequence that finishes keeps its slot");
  state_ = Finished{};
}

}  // namespace tessera
