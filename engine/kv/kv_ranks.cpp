// The functions of KvCache for tensor parallelism: each rank has a cache for its own KV heads.

#include <algorithm>

#include "engine/kv/kv_cache.h"
#include "kernels/check.h"

namespace tessera {

// Exchanges the free pages of all ranks, and the pages of `slots`, which are compressed. Between
// two calls, free pages change by the same number on every rank.
void KvCache::synchronize_totals(std::span<const int32_t> slots) {
  own_totals_.assign(1, free_pages_);
  for (const int32_t slot : slots) {
    own_totals_.push_back(open(slot).high_pages);
    own_totals_.push_back(open(slot).low_pages);
  }
  all_totals_.assign(own_totals_.begin(), own_totals_.end());
  if (ranks_ != nullptr) {
    all_totals_.resize(own_totals_.size() * static_cast<size_t>(ranks()));
    ranks_->all_gather(own_totals_, all_totals_);
  }
  const auto of = [&](int32_t rank, size_t total) {
    return all_totals_[static_cast<size_t>(rank) * own_totals_.size() + total];
  };
  int64_t min = of(0, 0);
  int64_t all = 0;
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    min = std::min(min, of(rank, 0));
    all += of(rank, 0);
  }
  surplus_ = own_totals_[0] - min;
  all_surplus_ = all - ranks() * min;
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = open(slots[i]);
    slot.min_pages = slot.max_pages = slot.pages();
    slot.all_high_pages = slot.all_low_pages = 0;
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      const int64_t high = of(rank, 1 + 2 * i);
      const int64_t low = of(rank, 2 + 2 * i);
      slot.min_pages = std::min(slot.min_pages, high + low);
      slot.max_pages = std::max(slot.max_pages, high + low);
      slot.all_high_pages += high;
      slot.all_low_pages += low;
    }
  }
}

// Counts `pages` for a compressed slot on every rank, until synchronize_totals() corrects this.
void KvCache::count_growth(Slot& slot, int64_t pages) {
  slot.min_pages += pages;
  slot.max_pages += pages;
  slot.all_high_pages += ranks() * pages;
}

// Adds the demoted and dropped tokens of all ranks to the totals.
void KvCache::count_changes(std::span<const KvCompressed> changes) {
  own_totals_.assign(2, 0);
  for (const KvCompressed& change : changes) {
    own_totals_[0] += change.demoted;
    own_totals_[1] += change.dropped;
  }
  all_totals_.assign(own_totals_.begin(), own_totals_.end());
  if (ranks_ != nullptr) {
    all_totals_.resize(2 * static_cast<size_t>(ranks()));
    ranks_->all_gather(own_totals_, all_totals_);
  }
  for (size_t i = 0; i < all_totals_.size(); i += 2) {
    demotions_ += all_totals_[i];
    dropped_ += all_totals_[i + 1];
  }
}

int64_t KvCache::all_available_pages() const {
  return available_pages() * ranks() + all_surplus_;
}

int64_t KvCache::all_pages(const Slot& slot) const {
  return slot.compressed ? slot.all_high_pages + slot.all_low_pages : ranks() * slot.pages();
}

// Every rank has the same number of pages of each format, except in compressed slots.
void KvCache::add_other_ranks(std::span<KvFormatPages> formats) const {
  for (KvFormatPages& format : formats) {
    format.exclusive *= ranks();
    format.shared *= ranks();
  }
  for (const Slot& slot : slots_) {
    if (slot.compressed) {
      formats[slot.tiers.high].exclusive += slot.all_high_pages - ranks() * slot.high_pages;
      formats[slot.tiers.low].exclusive += slot.all_low_pages - ranks() * slot.low_pages;
    }
  }
}

// A budget in bytes applies to the whole sequence; each rank gets its share of it.
KvPolicy KvCache::share_of(const KvPolicy& policy) const {
  KvPolicy share = policy;
  share.keep_bytes /= ranks();
  return share;
}

// Returns: the rows of all ranks, [layers, ranks * kv_heads]. Collective. Requires: the slot is
// compressed.
std::span<const KvRow> KvCache::all_rows(int32_t slot) const {
  const std::span<const KvRow> rows = arena_->slot_rows(slot);
  if (ranks_ == nullptr) {
    return rows;
  }
  std::vector<int64_t> own;
  for (const KvRow& row : rows) {
    own.push_back(row.high);
    own.push_back(row.low);
  }
  std::vector<int64_t> all(own.size() * static_cast<size_t>(ranks()));
  ranks_->all_gather(own, all);
  all_rows_.clear();
  for (int32_t layer = 0; layer < shape().layers; ++layer) {
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      for (int32_t head = 0; head < shape().kv_heads; ++head) {
        const auto row =
            static_cast<size_t>((rank * shape().layers + layer) * shape().kv_heads + head);
        all_rows_.push_back(
            {static_cast<int32_t>(all[2 * row]), static_cast<int32_t>(all[2 * row + 1])});
      }
    }
  }
  return all_rows_;
}

}  // namespace tessera
