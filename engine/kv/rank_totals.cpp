#include "engine/kv/rank_totals.h"

#include <algorithm>

namespace tessera {

RankTotals::RankTotals(Communicator* ranks, const KvArenaShape& shape)
    : ranks_(ranks), layers_(shape.layers), kv_heads_(shape.kv_heads) {
  if (shape.token_scores) {
    own_totals_.reserve(3 + 2 * static_cast<size_t>(shape.slots));
    all_totals_.reserve(static_cast<size_t>(this->ranks()) * own_totals_.capacity());
  }
}

void RankTotals::synchronize(int64_t free_pages, SlotTable& table, std::span<const int32_t> slots) {
  own_totals_.assign(1, free_pages);
  for (const int32_t slot : slots) {
    own_totals_.push_back(table.at(slot).high_pages);
    own_totals_.push_back(table.at(slot).low_pages);
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
    SlotState& slot = table.at(slots[i]);
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

void RankTotals::count_changes(std::span<const KvCompressed> changes) {
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

void RankTotals::add_other_ranks(std::span<const SlotState> slots,
                                 std::span<KvFormatPages> formats) const {
  for (KvFormatPages& format : formats) {
    format.exclusive *= ranks();
    format.shared *= ranks();
  }
  for (const SlotState& slot : slots) {
    if (slot.compressed) {
      formats[slot.tiers.high].exclusive += slot.all_high_pages - ranks() * slot.high_pages;
      formats[slot.tiers.low].exclusive += slot.all_low_pages - ranks() * slot.low_pages;
    }
  }
}

std::span<const KvRow> RankTotals::all_rows(std::span<const KvRow> rows) const {
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
  for (int32_t layer = 0; layer < layers_; ++layer) {
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      for (int32_t head = 0; head < kv_heads_; ++head) {
        const auto row = static_cast<size_t>((rank * layers_ + layer) * kv_heads_ + head);
        all_rows_.push_back(
            {static_cast<int32_t>(all[2 * row]), static_cast<int32_t>(all[2 * row + 1])});
      }
    }
  }
  return all_rows_;
}

}  // namespace tessera
