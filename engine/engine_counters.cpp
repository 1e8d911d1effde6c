#include "engine/engine_counters.h"

#include <algorithm>
#include <utility>

namespace tessera {

EngineCounters::EngineCounters(const KvCache& kv, const BlockTiers* tiers, int64_t kv_bytes)
    : kv_(kv), tiers_(tiers) {
  const KvArenaShape& shape = kv.shape();
  const int64_t ranks = kv.accounting().rank_totals().ranks();
  counting_.pages_total = ranks * shape.pages;
  counting_.page_bytes = shape.page_bytes;
  counting_.page_tokens = kv.planning().budget().page_tokens;
  counting_.residual_bytes = ranks * shape.slots * shape.slot_residual_bytes();
  counting_.table_bytes =
      ranks * kv_bytes - counting_.residual_bytes - counting_.pages_total * counting_.page_bytes;
  counting_.token_capacity = kv.planning().token_capacity();
  counting_.prefix_block_tokens = kv.prefixes().block_tokens();
  publish();
}

void EngineCounters::publish() {
  const KvAccounting& accounting = kv_.accounting();
  const RankTotals& totals = accounting.rank_totals();
  counting_.pages_free = accounting.all_available_pages();
  counting_.swapped_bytes = kv_.swapped_bytes();
  counting_.cache = kv_.prefixes().stats();
  counting_.cache.pages *= totals.ranks();
  counting_.cache.unlocked_pages *= totals.ranks();
  counting_.tiers = tiers_ == nullptr ? KvTierStats{} : tiers_->stats();
  counting_.kv_demotions = totals.demotions();
  counting_.kv_dropped_tokens = totals.dropped_tokens();
  counting_.formats = static_cast<int32_t>(accounting.format_pages().size());
  std::copy(accounting.format_pages().begin(), accounting.format_pages().end(),
            counting_.format_pages);
  const bool outlined = outline_wanted_.exchange(false);
  if (outlined) {
    kv_.prefixes().outline(outlining_);
  }
  const std::lock_guard lock(mutex_);
  published_ = counting_;
  if (outlined) {
    std::swap(published_outline_, outlining_);
  }
}

// Ranks that wait for a leader come here hundreds of times a second, so nothing is done twice.
void EngineCounters::publish_outline() {
  const OutlinedAt now{counting_.steps, counting_.cache.evicted_blocks,
                       counting_.cache.pinned_blocks};
  if (now == outlined_at_) {
    return;
  }
  outlined_at_ = now;
  kv_.prefixes().outline(outlining_);
  const std::lock_guard lock(mutex_);
  std::swap(published_outline_, outlining_);
}

PrefixOutline EngineCounters::outline() const {
  outline_wanted_ = true;
  const std::lock_guard lock(mutex_);
  return published_outline_;
}

EngineStats EngineCounters::published() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

}  // namespace tessera
