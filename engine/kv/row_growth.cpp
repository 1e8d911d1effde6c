#include "engine/kv/row_growth.h"

#include "base/check.h"

namespace tessera {

RowGrowth::RowGrowth(int32_t slots) {
  grown_.reserve(static_cast<size_t>(slots));
  planned_.reserve(static_cast<size_t>(slots));
  taken_.reserve(static_cast<size_t>(slots));
}

void RowGrowth::begin() {
  TESSERA_CHECK(settled(), "rows grow before their last growth is settled");
  grown_.clear();
  planned_.clear();
  uneven_ = false;
}

void RowGrowth::add(const KvGrowth& growth, int64_t pages, bool compressed) {
  grown_.push_back(growth);
  planned_.push_back(pages);
  uneven_ = uneven_ || compressed;
}

void RowGrowth::run(KvArena& arena, const Backend& backend, Stream stream) {
  taken_.assign(uneven_ ? grown_.size() : 0, kUnknown);
  backend.kv_resize({.pool = arena.pool(), .released = {}, .grown = grown_, .taken = taken_},
                    stream);
}

int64_t RowGrowth::settle(const KvArena& arena, SlotTable& slots,
                          std::vector<int32_t>& compressed) {
  if (taken_.front() == kUnknown) {  // the step computed no logits, so the host has not waited yet
    arena.wait();
  }
  int64_t all_unused = 0;
  for (size_t i = 0; i < taken_.size(); ++i) {
    SlotState& slot = slots.at(grown_[i].slot);
    const int64_t unused = planned_[i] - taken_[i];
    TESSERA_CHECK(unused >= 0 && (unused == 0 || slot.compressed),
                  "rows grew by other pages than were planned");
    slot.high_pages -= unused;
    all_unused += unused;
    if (slot.compressed) {
      compressed.push_back(grown_[i].slot);
    }
  }
  taken_.clear();
  return all_unused;
}

}  // namespace tessera
