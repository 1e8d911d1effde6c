#include "engine/kv/kv_compressor.h"

#include <algorithm>

#include "base/check.h"
#include "engine/kv/kv_tightening.h"
#include "engine/kv/kv_windows.h"

namespace tessera {

KvCompressor::KvCompressor(KvArena& arena, SlotTable& slots, const Backend& backend, Stream stream,
                           std::span<std::byte> scratch)
    : arena_(arena), slots_(slots), backend_(backend), stream_(stream), scratch_(scratch) {
  if (arena.shape().token_scores) {
    planned_.reserve(slots.all().size());
    results_.resize(slots.all().size());
  }
}

namespace {

// The compression of the section that has just been replayed: earlier sections stay as they are,
// the replay is forgotten.
KvCompression section_compression(int32_t index, const SlotState& slot, const KvArenaShape& shape) {
  const KvSections& sections = slot.sections;
  const auto row_pages = static_cast<int32_t>(sections.pages / shape.whole_rows());
  KvPolicy policy = slot.policy;
  policy.budget().amount = KvAmount::of_tokens(sections.next_end() / sections.tokens * row_pages *
                                               shape.layout(slot.tiers.high).capacity);
  policy.sinks = std::max(policy.sinks, sections.compressed);
  policy.recent = 0;
  return {.slot = index,
          .tiers = slot.tiers,
          .policy = policy,
          .tokens = sections.next_end(),
          .prompt_tokens = slot.prompt_tokens,
          .forgotten = sections.tokens,
          .section = shape.section_scores > 0 ? sections.tokens : 0};
}

void finish_section(SlotState& slot, const KvCompressed& result, const KvArenaShape& shape) {
  slot.sections.compressed = slot.sections.next_end();
  slot.tokens = slot.sections.compressed;
  slot.high_pages -= result.pages_freed;
  const KvWindows windows = KvWindows::of(shape);
  const int32_t capacity = shape.layout(slot.tiers.high).capacity;
  const int64_t windowed =
      windows.rows * (slot.tokens / capacity - passed_pages(windows.window, slot.passed, capacity));
  TESSERA_CHECK(slot.high_pages - windowed ==
                    slot.sections.compressed / slot.sections.tokens * slot.sections.pages,
                "a compressed section has other pages than were planned");
}

}  // namespace

bool KvCompressor::is_due(const SlotState& slot) {
  if (slot.policy.replays()) {
    return slot.replayed() > 0 && slot.replayed() == slot.sections.tokens;
  }
  if (!slot.policy.is_lossy() || slot.tokens < slot.prompt_tokens) {
    return false;
  }
  return !slot.compressed || slot.handed_over ||
         (slot.policy.compress_generated && slot.tokens / kKvGroup > slot.groups);
}

std::span<const KvCompression> KvCompressor::plan(std::span<const KvSlot* const> slots) {
  planned_.clear();
  for (const KvSlot* const handle : slots) {
    const SlotState& slot = slots_.at(*handle);
    if (!is_due(slot)) {
      continue;
    }
    if (slot.policy.replays()) {
      planned_.push_back(section_compression(handle->index(), slot, arena_.shape()));
    } else {
      planned_.push_back(compression_of(handle->index(), slot,
                                        tightened_policy(slot, slot.tightenings, arena_.shape())));
    }
  }
  return planned_;
}

std::span<const KvCompression> KvCompressor::plan_tightening(const KvSlot& handle, int32_t steps,
                                                             int32_t ranks) {
  SlotState& slot = slots_.at(handle);
  TESSERA_CHECK(slot.policy.is_lossy() && slot.compressed,
                "a slot that has no budget is tightened");
  if (slot.tightenings == 0) {
    slot.stored_share = stored_share(slot, arena_.shape(), ranks);
  }
  slot.tightenings += steps;
  planned_.clear();
  planned_.push_back(compression_of(handle.index(), slot,
                                    tightened_policy(slot, slot.tightenings, arena_.shape())));
  return planned_;
}

std::span<const KvCompressed> KvCompressor::run() {
  const std::span<KvCompressed> results = std::span(results_).first(planned_.size());
  backend_.kv_compress({arena_.pool(), planned_, results, scratch_}, stream_);
  for (size_t i = 0; i < planned_.size(); ++i) {
    SlotState& slot = slots_.at(planned_[i].slot);
    if (slot.policy.replays()) {
      finish_section(slot, results[i], arena_.shape());
      continue;
    }
    slot.compressed = true;
    slot.handed_over = false;
    slot.groups = slot.tokens / kKvGroup;
    slot.evaluated = std::max(slot.evaluated, planned_[i].evaluated_after());
    slot.high_pages = slot.pages() - results[i].pages_freed - results[i].low_pages;
    slot.low_pages = results[i].low_pages;
  }
  return results;
}

}  // namespace tessera
