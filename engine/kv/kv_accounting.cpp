#include "engine/kv/kv_accounting.h"

#include <algorithm>

#include "base/check.h"
#include "engine/kv/kv_tightening.h"

namespace tessera {

KvAccounting::KvAccounting(const KvArena& arena, SlotTable& slots, const PrefixCache* prefixes,
                           Communicator* ranks)
    : arena_(arena),
      slots_(slots),
      prefixes_(prefixes),
      ranks_(ranks, arena.shape()),
      free_pages_(arena.shape().pages) {
  for (const KvFormat format : arena.shape().formats) {
    format_pages_.push_back({format, 0});
  }
}

int64_t KvAccounting::slot_bytes(const KvSlot& slot) const {
  return slots_.at(slot).pages_of_all(ranks_.ranks()) * arena_.shape().page_bytes +
         ranks_.ranks() * arena_.shape().slot_bytes();
}

KvUsage KvAccounting::usage(const KvSlot& slot) const {
  const SlotState& of = slots_.at(slot);
  const int64_t heads = ranks_.ranks() * arena_.shape().slot_rows();
  const int32_t tokens = of.tokens - of.replayed();
  KvUsage usage{.bytes = slot_bytes(slot),
                .f16_bytes = heads * tokens * 2 * arena_.shape().head_dim * 2,
                .budget_share = budget_share(of.floor, of.tightenings),
                .kept = {}};
  // All rows then hold the same tokens, so no copy from the backend is needed.
  if (!of.compressed && of.sections.compressed == 0) {
    usage.high = tokens - of.low_tokens;
    usage.low = of.low_tokens;
    usage.kept.assign(of.policy.is_lossy() ? static_cast<size_t>(heads) : 0, tokens);
    return usage;
  }
  int64_t high = 0;
  int64_t low = 0;
  const std::span<const KvRow> rows = ranks_.all_rows(arena_.slot_rows(slot.index()));
  const int32_t replayed = of.replayed() / kKvGroup * kKvGroup;  // closed tokens of a replay
  for (const KvRow& row : rows) {
    high += row.high - replayed;
    low += row.low;
    usage.kept.push_back(row.high - replayed + row.low + tokens % kKvGroup);
  }
  const auto rows_count = static_cast<double>(rows.size());
  usage.high = static_cast<double>(high) / rows_count + tokens % kKvGroup;
  usage.low = static_cast<double>(low) / rows_count;
  usage.dropped = tokens - usage.high - usage.low;
  return usage;
}

void KvAccounting::take(int64_t pages) {
  TESSERA_CHECK(pages <= free_pages_, "more pages are taken than are free");
  free_pages_ -= pages;
}

int64_t KvAccounting::cached_high_pages(int32_t slot) const {
  return prefixes_ == nullptr ? 0 : prefixes_->paths().cached_high_pages(slot, 0);
}

int64_t KvAccounting::cached_low_pages(int32_t slot) const {
  return prefixes_ == nullptr ? 0 : prefixes_->paths().cached_low_pages(slot);
}

int64_t KvAccounting::cached_windowed_pages(int32_t slot) const {
  return prefixes_ == nullptr ? 0 : prefixes_->paths().cached_windowed_pages(slot);
}

int64_t KvAccounting::pages_alone(int32_t slot) const {
  const SlotState& of = slots_.all()[static_cast<size_t>(slot)];
  const int64_t shared = std::max(slots_.families().shared(slot), cached_high_pages(slot));
  return of.high_pages - shared - cached_windowed_pages(slot) + of.low_pages -
         cached_low_pages(slot);
}

// Counts pages by format. A page that several slots share is counted once, with the last slot of
// the family's list that has it.
void KvAccounting::count_formats() {
  for (KvFormatPages& format : format_pages_) {
    format.exclusive = 0;
    format.shared = 0;
  }
  const ForkFamilies& families = slots_.families();
  for (int32_t i = 0; i < std::ssize(slots_.all()); ++i) {
    const SlotState& slot = slots_.all()[static_cast<size_t>(i)];
    const int64_t low = slot.low_pages - cached_low_pages(i);
    const int64_t elsewhere = std::max(families.shared_with_next(i), cached_high_pages(i));
    KvFormatPages& high = format_pages_[slot.tiers.high];
    high.exclusive += pages_alone(i) - low;
    high.shared += std::max<int64_t>(0, families.shared_with_previous(i) - elsewhere);
    format_pages_[slot.tiers.low].exclusive += low;
  }
  if (prefixes_ != nullptr) {
    prefixes_->add_pages(format_pages_);
  }
  ranks_.add_other_ranks(slots_.all(), format_pages_);
}

void KvAccounting::check_integrity() const {
  TESSERA_CHECK(free_pages_ == arena_.free_pages(), "free pages differ from their count");
  for (int32_t slot = 0; slot < std::ssize(slots_.all()); ++slot) {
    TESSERA_CHECK(arena_.slot_pages(slot) == slots_.all()[static_cast<size_t>(slot)].pages(),
                  "a slot's pages differ from their count");
  }
  int64_t used = 0;
  for (const KvFormatPages& format : format_pages_) {
    used += format.exclusive + format.shared;
  }
  const int64_t free = free_pages() * ranks_.ranks() + ranks_.all_surplus();
  TESSERA_CHECK(used + free <= pages_total() * ranks_.ranks(),
                "pages by format are more than are in use");
}

}  // namespace tessera
