#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/kv_usage.h"
#include "engine/kv/slot_table.h"
#include "kernels/communicator.h"
#include "kernels/kv/kv_arena.h"
#include "kernels/ops/pages.h"

namespace tessera {

// Page totals over tensor-parallel ranks, each of which has a KvCache for its own KV heads.
//
// All ranks make the same calls. Page totals of ranks differ only after a policy has compressed
// rows, because each rank compresses by its own scores. Between two calls of synchronize(), free
// pages change by the same number on every rank. Calls that exchange numbers are collective. With
// one rank nothing is exchanged.
class RankTotals {
 public:
  // ranks: not owned, outlives this; null: one rank.
  RankTotals(Communicator* ranks, const KvArenaShape& shape);

  int32_t ranks() const { return ranks_ == nullptr ? 1 : ranks_->ranks(); }
  // Free pages of this rank beyond those of the rank with the fewest.
  int64_t surplus() const { return surplus_; }
  int64_t all_surplus() const { return all_surplus_; }  // the same, summed over all ranks

  // Exchanges the free pages, and the pages of `slots`, which are compressed. Collective.
  void synchronize(int64_t free_pages, SlotTable& table, std::span<const int32_t> slots);
  // Adds the demoted and dropped tokens of all ranks to the totals. Collective.
  void count_changes(std::span<const KvCompressed> changes);
  // Since the start: a token counts once for each layer and KV head.
  int64_t demotions() const { return demotions_; }
  int64_t dropped_tokens() const { return dropped_; }

  // rows: of a compressed slot on this rank. Collective.
  // Returns: the rows of all ranks, [layers, ranks * kv_heads], valid until the next call.
  std::span<const KvRow> all_rows(std::span<const KvRow> rows) const;
  // Turns pages by format on this rank into sums over all ranks. Every rank has the same number of
  // pages of each format, except in compressed slots.
  void add_other_ranks(std::span<const SlotState> slots, std::span<KvFormatPages> formats) const;

 private:
  Communicator* const ranks_;
  const int32_t layers_;
  const int32_t kv_heads_;
  int64_t surplus_ = 0;
  int64_t all_surplus_ = 0;
  int64_t demotions_ = 0;
  int64_t dropped_ = 0;
  std::vector<int64_t> own_totals_;  // of one all_gather
  std::vector<int64_t> all_totals_;  // [ranks, own_totals_]
  mutable std::vector<KvRow> all_rows_;
};

}  // namespace tessera
