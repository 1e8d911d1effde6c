#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_arena.h"

namespace tessera {
namespace {

constexpr KvPageLayout kLayout = KvPageLayout::make(kKvF16, 8, 16);

class KvPoolTest : public testing::Test {
 protected:
  void make(int32_t pages, int32_t slots, int32_t layers, int32_t kv_heads, int32_t context) {
    arena_ = KvArena::make({kLayout, pages, slots, layers, kv_heads, context});
    ASSERT_NE(arena_, nullptr);
  }
  void resize(const std::vector<KvRowResize>& changes) {
    cpu_backend(CpuIsa::scalar)
        .kv_resize({.pool = arena_->pool(), .changes = changes}, pool_.stream());
  }
  std::vector<int32_t> row(int32_t slot, int32_t layer, int32_t head) const {
    const int32_t* ids = arena_->view().row(slot, layer, head);
    return {ids, ids + arena_->view().row_pages};
  }

  ThreadPool pool_{1};
  std::unique_ptr<KvArena> arena_;
};

TEST_F(KvPoolTest, BeginsWithAllPagesFree) {
  make(10, 2, 1, 2, 40);
  EXPECT_EQ(arena_->free_pages(), 10);
  EXPECT_EQ(arena_->shape().row_pages(), 3);
  EXPECT_EQ(row(1, 0, 1), std::vector<int32_t>(3, kNoPage));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena_->view().arena) % (2 << 20), 0u);
  arena_->check_integrity();
}

TEST_F(KvPoolTest, GivesARowNeighbouringPages) {
  make(20, 2, 2, 2, 48);
  resize({{0, 0, 2}});
  EXPECT_EQ(row(0, 0, 0), (std::vector<int32_t>{0, 1, kNoPage}));
  EXPECT_EQ(row(0, 0, 1), (std::vector<int32_t>{2, 3, kNoPage}));
  EXPECT_EQ(row(0, 1, 1), (std::vector<int32_t>{6, 7, kNoPage}));
  EXPECT_EQ(arena_->slot_pages(0), 8);
  EXPECT_EQ(arena_->slot_pages(1), 0);
  EXPECT_EQ(arena_->free_pages(), 12);
}

TEST_F(KvPoolTest, ServesGrowthFromWhatShrinksInTheSameCall) {
  make(8, 2, 1, 2, 64);
  resize({{0, 0, 4}});
  EXPECT_EQ(arena_->free_pages(), 0);
  resize({{1, 0, 3}, {0, 4, 1}});
  EXPECT_EQ(arena_->free_pages(), 0);
  EXPECT_EQ(arena_->slot_pages(0), 2);
  EXPECT_EQ(arena_->slot_pages(1), 6);
  arena_->check_integrity();
}

TEST_F(KvPoolTest, TakesAnEmptyChangeAndNoChange) {
  make(8, 2, 1, 2, 64);
  resize({});
  resize({{0, 0, 0}, {1, 0, 1}});
  resize({{1, 1, 1}});
  EXPECT_EQ(arena_->free_pages(), 6);
  arena_->check_integrity();
}

// Against a plain model of who holds what. Rows that do not change keep their pages, and those that
// do keep their first ones.
TEST_F(KvPoolTest, KeepsEveryPageExactlyOnceThroughRandomChanges) {
  constexpr uint32_t kSeed = 20261120;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr int32_t kSlots = 6;
  constexpr int32_t kRows = 2 * 3;
  make(151, kSlots, 2, 3, 16 * 9);
  std::mt19937 random(kSeed);
  std::vector<int32_t> held(kSlots, 0);
  for (int step = 0; step < 100000; ++step) {
    std::vector<int32_t> order(kSlots);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    order.resize(random() % (kSlots + 1));
    std::vector<KvRowResize> changes;
    std::vector<int32_t> after = held;
    for (const int32_t slot : order) {
      const int32_t wanted = static_cast<int32_t>(random() % 10);
      int32_t total = 0;
      after[static_cast<size_t>(slot)] = wanted;
      for (const int32_t pages : after) {
        total += pages * kRows;
      }
      if (total > 151) {
        after[static_cast<size_t>(slot)] = std::min(wanted, held[static_cast<size_t>(slot)]);
      }
      changes.push_back({slot, held[static_cast<size_t>(slot)], after[static_cast<size_t>(slot)]});
    }
    std::vector<int32_t> tables(arena_->view().tables, arena_->view().tables + kSlots * kRows * 9);
    resize(changes);
    int64_t free = 151;
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      const int32_t pages = after[static_cast<size_t>(slot)];
      const int32_t kept = std::min(pages, held[static_cast<size_t>(slot)]);
      ASSERT_EQ(arena_->slot_pages(slot), pages * kRows) << "step " << step;
      for (int32_t r = 0; r < kRows; ++r) {
        const int32_t first = (slot * kRows + r) * 9;
        ASSERT_TRUE(std::equal(tables.begin() + first, tables.begin() + first + kept,
                               arena_->view().tables + first))
            << "step " << step << " slot " << slot;
      }
      free -= pages * kRows;
    }
    ASSERT_EQ(arena_->free_pages(), free);
    arena_->check_integrity();
    held = after;
  }
}

using KvPoolDeathTest = KvPoolTest;

TEST_F(KvPoolDeathTest, RefusesWhatOnlyABugCanAsk) {
  make(5, 2, 1, 2, 64);
  EXPECT_DEATH(resize({{0, 0, 3}}), "not enough free pages");
  EXPECT_DEATH(resize({{0, 0, 5}}), "exceed the row");
  EXPECT_DEATH(resize({{2, 0, 1}}), "no such slot");
  EXPECT_DEATH(resize({{0, 1, 2}}), "fewer pages than stated");
  resize({{0, 0, 1}});
  EXPECT_DEATH(resize({{0, 2, 1}}), "fewer pages than stated");
  EXPECT_DEATH(resize({{0, 0, 1}}), "more pages than stated");
}

TEST_F(KvPoolDeathTest, IntegrityNoticesAPageInTwoPlacesAStrangeOwnerAHoleAndALoss) {
  make(8, 2, 1, 2, 64);
  resize({{0, 0, 2}});
  int32_t* tables = arena_->pool().tables;
  const std::vector<int32_t> intact(tables, tables + 4);
  tables[1] = tables[0];
  EXPECT_DEATH(arena_->check_integrity(), "other owners than entries");
  tables[1] = 6;  // free
  EXPECT_DEATH(arena_->check_integrity(), "other owners than entries");
  tables[1] = 8;
  EXPECT_DEATH(arena_->check_integrity(), "outside the arena");
  tables[0] = kNoPage;
  EXPECT_DEATH(arena_->check_integrity(), "hole");
  std::copy(intact.begin(), intact.end(), tables);
  tables[4 + 2] = tables[0];  // of another head
  EXPECT_DEATH(arena_->check_integrity(), "two heads");
  tables[4 + 2] = kNoPage;
  arena_->pool().free_list[5] = tables[0];
  EXPECT_DEATH(arena_->check_integrity(), "a free page stands in a table");
  arena_->pool().free_list[5] = arena_->pool().free_list[6];
  EXPECT_DEATH(arena_->check_integrity(), "twice in the list");
  arena_->pool().free_range->count -= 1;
  EXPECT_DEATH(arena_->check_integrity(), "missing");
}

}  // namespace
}  // namespace tessera
