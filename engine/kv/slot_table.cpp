#include "engine/kv/slot_table.h"

#include <utility>

#include "base/check.h"

namespace tessera {

void SlotState::begin_as(const SlotState& source, int32_t first_tokens) {
  TESSERA_CHECK(tokens == 0, "a fork into a slot that holds something");
  tiers = source.tiers;
  low_tokens = source.low_tokens;
  sections = source.sections;
  low_pages = source.low_pages;
  tokens = first_tokens;
}

void SlotState::grow(int64_t pages, int32_t ranks) {
  high_pages += pages;
  if (compressed) {
    min_pages += pages;
    max_pages += pages;
    all_high_pages += ranks * pages;
  }
}

SlotTable::SlotTable(int32_t slots) : states_(static_cast<size_t>(slots)), families_(slots) {
  for (int32_t slot = slots; slot > 0; --slot) {
    free_.push_back(slot - 1);
  }
}

int32_t SlotTable::open(const SlotState& state) {
  TESSERA_CHECK(!free_.empty(), "every slot is open");
  const int32_t slot = free_.back();
  free_.pop_back();
  TESSERA_CHECK(!states_[static_cast<size_t>(slot)].open, "a slot is opened twice");
  states_[static_cast<size_t>(slot)] = state;
  states_[static_cast<size_t>(slot)].open = true;
  return slot;
}

void SlotTable::close(int32_t slot) {
  families_.leave(slot);
  at(slot) = {};
  free_.push_back(slot);
}

const SlotState& SlotTable::at(int32_t slot) const {
  TESSERA_CHECK(slot >= 0 && slot < std::ssize(states_), "no such slot");
  TESSERA_CHECK(states_[static_cast<size_t>(slot)].open, "the slot is closed");
  return states_[static_cast<size_t>(slot)];
}

SlotState& SlotTable::at(int32_t slot) {
  return const_cast<SlotState&>(std::as_const(*this).at(slot));
}

}  // namespace tessera
