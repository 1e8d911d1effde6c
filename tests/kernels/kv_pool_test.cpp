#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {
namespace {

TEST(KvArena, HasTheProfilesOfItsRanksHeads) {
  KvArenaShape shape{.formats = {kKvF16},
                     .head_dim = 8,
                     .page_bytes = KvPageLayout::make(kKvF16, 8, 64).page_bytes,
                     .pages = 6,
                     .slots = 1,
                     .layers = 3,
                     .kv_heads = 2,
                     .context = 64};
  for (int32_t i = 0; i < 12; ++i) {  // 4 KV heads on two ranks
    shape.head_profiles.push_back({.place = static_cast<float>(i)});
  }
  const auto places = [&](int32_t rank) {
    shape.rank = rank;
    const auto arena = KvArena::make(shape);
    std::vector<float> found;
    for (int32_t row = 0; row < 6; ++row) {
      found.push_back(arena->pool().head_profiles[row].place);
    }
    return found;
  };
  EXPECT_EQ(places(0), (std::vector<float>{0, 1, 4, 5, 8, 9}));
  EXPECT_EQ(places(1), (std::vector<float>{2, 3, 6, 7, 10, 11}));
}

class KvPoolTest : public testing::Test {
 protected:
  // Two layers of three KV heads; pages hold 16 tokens of f16, 16 of K8V4 and 32 of K4V2.
  static constexpr int32_t kRows = 6;

  void make(int32_t pages, int32_t slots, int32_t context, std::vector<KvFormat> formats = {kKvF16},
            bool token_scores = false) {
    shape_ = {.formats = std::move(formats),
              .head_dim = 8,
              .page_bytes = 512,
              .pages = pages,
              .slots = slots,
              .layers = 2,
              .kv_heads = 3,
              .context = context,
              .token_scores = token_scores};
    arena_ = KvArena::make(shape_);
    ASSERT_NE(arena_, nullptr);
  }
  void resize(const std::vector<int32_t>& released, const std::vector<KvGrowth>& grown) {
    cpu_backend(CpuIsa::scalar)
        .kv_resize({.pool = arena_->pool(), .released = released, .grown = grown}, pool_.stream());
  }
  void fork(const std::vector<KvFork>& forks) {
    cpu_backend(CpuIsa::scalar).kv_fork({.pool = arena_->pool(), .forks = forks}, pool_.stream());
  }
  std::vector<int32_t> row(int32_t slot, int32_t layer, int32_t head) const {
    const KvPagesView pages = arena_->view();
    const int32_t* ids = pages.table(pages.row_index(slot, layer, head));
    return {ids, ids + pages.row_pages};
  }
  // Adds to the counts, as kv_store would.
  void add_tokens(int32_t slot, int32_t high, int32_t low = 0) {
    const KvPagesView pages = arena_->view();
    for (int64_t r = 0; r < kRows; ++r) {
      pages.rows[slot * kRows + r].high += high;
      pages.rows[slot * kRows + r].low += low;
    }
  }

  ThreadPool pool_{1};
  KvArenaShape shape_;
  std::unique_ptr<KvArena> arena_;
};

TEST_F(KvPoolTest, BeginsWithAllPagesFree) {
  make(10, 2, 130);
  EXPECT_EQ(arena_->free_pages(), 10);
  EXPECT_EQ(shape_.row_pages(), 8);  // for 128 tokens: the open group is in the residual buffer
  EXPECT_EQ(row(1, 1, 2), std::vector<int32_t>(8, kNoPage));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena_->view().arena) % (2 << 20), 0u);
  EXPECT_EQ(arena_->view().token_scores, nullptr);
  arena_->check_integrity();
}

TEST_F(KvPoolTest, CountsTheBytesOfEveryPart) {
  make(10, 2, 130, {kKvK8V4, kKvK4V2}, true);
  EXPECT_EQ(shape_.layout(0).capacity, 16);
  EXPECT_EQ(shape_.layout(1).capacity, 32);
  EXPECT_EQ(shape_.row_pages(), 9);  // one more, for two partly filled pages
  EXPECT_EQ(shape_.arena_bytes(), 10 * 512);
  EXPECT_EQ(shape_.slot_residual_bytes(), kRows * 64 * 8 * 4);
  EXPECT_EQ(shape_.slot_table_bytes(), kRows * (9 * 4 + 8));
  EXPECT_EQ(shape_.slot_token_score_bytes(), kRows * 131 * 8);
  EXPECT_EQ(shape_.total_bytes(), 10 * (512 + 6) + 2 * kRows * (64 * 8 * 4 + 9 * 4 + 8 + 131 * 8));
  EXPECT_EQ(arena_->view().row_token_scores, 131);
}

TEST_F(KvPoolTest, GivesEveryRowRoomForTheTokens) {
  make(50, 2, 256);
  resize({}, {{0, {}, 32}});
  EXPECT_EQ(row(0, 0, 0),
            (std::vector<int32_t>{0, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(row(0, 1, 2)[1], 11);
  EXPECT_EQ(arena_->slot_pages(0), 2 * kRows);
  EXPECT_EQ(arena_->free_pages(), 50 - 2 * kRows);
  resize({}, {{0, {}, 32}});  // there is enough room already
  EXPECT_EQ(arena_->slot_pages(0), 2 * kRows);
  add_tokens(0, 20);
  resize({}, {{0, {}, 12}});  // in the second page
  EXPECT_EQ(arena_->slot_pages(0), 2 * kRows);
  resize({}, {{0, {}, 13}, {1, {}, 0}});
  EXPECT_EQ(arena_->slot_pages(0), 3 * kRows);
  arena_->check_integrity();
}

TEST_F(KvPoolTest, ReadsEachRowsOwnNumberOfTokens) {
  make(50, 1, 256);
  arena_->view().rows[0].high = 0;
  resize({}, {{0, {}, 64}});
  arena_->view().rows[0].high = 5;
  arena_->view().rows[1].high = 64;
  resize({}, {{0, {}, 64}});
  EXPECT_EQ(arena_->slot_pages(0), 5 + 8 + 4 * 4);
  arena_->check_integrity();
}

TEST_F(KvPoolTest, ServesGrowthFromWhatIsReleasedInTheSameCall) {
  make(24, 2, 64);
  resize({}, {{0, {}, 64}});
  EXPECT_EQ(arena_->free_pages(), 0);
  add_tokens(0, 64);
  resize({0}, {{1, {}, 64}});
  EXPECT_EQ(arena_->free_pages(), 0);
  EXPECT_EQ(arena_->slot_pages(0), 0);
  EXPECT_EQ(arena_->view().rows[0].high, 0);
  resize({1}, {{1, {}, 16}});  // a slot may be emptied and filled again in one call
  EXPECT_EQ(arena_->slot_pages(1), kRows);
  arena_->check_integrity();
}

TEST_F(KvPoolTest, TakesNoChangeAtAll) {
  make(8, 2, 64);
  resize({}, {});
  resize({0, 1}, {{0, {}, 0}});
  fork({});
  EXPECT_EQ(arena_->free_pages(), 8);
  arena_->check_integrity();
}

TEST_F(KvPoolTest, SharesFullPagesAndCopiesThePartlyFilled) {
  make(100, 3, 128, {kKvK8V4, kKvK4V2}, true);
  const KvTiers tiers{0, 1};
  resize({}, {{0, tiers, 40}});
  add_tokens(0, 40);
  const KvPagesView pages = arena_->view();
  KvPool pool = arena_->pool();
  // One partly filled low page for each row, as a policy would take it.
  for (int64_t r = 0; r < kRows; ++r) {
    const int32_t id = pool.free_list[pool.free_range->head++];
    --pool.free_range->count;
    pool.owners[id] = 1;
    pool.tables[r * pages.row_pages + pages.row_pages - 1] = id;
    pages.rows[r].low = 7;
    pages.token_score_row(r)[39] = {2.5f, 77};
    pages.token_score_row(r)[pages.row_token_scores - 7] = {1.5f, 5};
    std::memset(pages.page(id), 0x5a, 512);
    std::memset(pages.residual(r), 0x33, static_cast<size_t>(pages.residual_layout.page_bytes));
  }
  arena_->check_integrity();
  fork({{0, 2, tiers}});
  EXPECT_EQ(arena_->free_pages(), 100 - 4 * kRows - 2 * kRows);
  arena_->check_integrity();
  const std::vector<int32_t> from = row(0, 1, 1);
  const std::vector<int32_t> to = row(2, 1, 1);
  EXPECT_EQ(from[0], to[0]);
  EXPECT_EQ(from[1], to[1]);
  EXPECT_NE(from[2], to[2]);
  EXPECT_EQ(to[3], kNoPage);
  EXPECT_NE(from.back(), to.back());
  EXPECT_EQ(pages.page(to.back())[511], std::byte{0x5a});
  const int64_t copied = pages.row_index(2, 1, 1);
  EXPECT_EQ(pages.rows[copied].high, 40);
  EXPECT_EQ(pages.rows[copied].low, 7);
  EXPECT_EQ(pages.token_score_row(copied)[39].position, 77);
  EXPECT_EQ(pages.token_score_row(copied)[pages.row_token_scores - 7].score, 1.5f);
  EXPECT_EQ(pages.residual(copied)[0], std::byte{0x33});
  resize({0}, {});
  EXPECT_EQ(arena_->slot_pages(2), 4 * kRows);
  EXPECT_EQ(arena_->free_pages(), 100 - 4 * kRows);
  arena_->check_integrity();
  resize({2}, {});
  EXPECT_EQ(arena_->free_pages(), 100);
}

TEST_F(KvPoolTest, ForksTheFirstTokensOfTheHighTierOnly) {
  make(100, 3, 128);
  resize({}, {{0, {}, 96}});
  add_tokens(0, 96);
  fork({{0, 1, {}, 64}, {0, 2, {}, 72}});
  EXPECT_EQ(arena_->view().rows[kRows].high, 64);
  EXPECT_EQ(arena_->slot_pages(1), 4 * kRows);
  EXPECT_EQ(arena_->slot_pages(2), 5 * kRows);
  EXPECT_EQ(arena_->free_pages(), 100 - 6 * kRows - kRows);
  EXPECT_NE(row(2, 0, 0)[4], row(0, 0, 0)[4]);
  arena_->check_integrity();
}

TEST_F(KvPoolTest, DoesNotCopyRoomThatHoldsNothing) {
  make(100, 2, 128);
  resize({}, {{0, {}, 64}});
  add_tokens(0, 16);
  fork({{0, 1, {}}});
  EXPECT_EQ(arena_->slot_pages(1), kRows);
  EXPECT_EQ(arena_->free_pages(), 100 - 4 * kRows);
  arena_->check_integrity();
}

// Expected content of a slot, in a plain model: all rows of a slot are alike.
struct SlotModel {
  int32_t tokens = 0;
  int32_t pages = 0;
};

// Grows, stores, forks and releases at random. Every page stays accounted for.
TEST_F(KvPoolTest, AccountsForEveryPageThroughRandomChanges) {
  constexpr uint32_t kSeed = 20261120;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr int32_t kSlots = 6;
  make(150, kSlots, 256, {kKvK4V2});  // 32 tokens a page, 8 pages a row
  std::mt19937 random(kSeed);
  std::vector<SlotModel> slots(kSlots);
  const auto pick = [&](int32_t below) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(below));
  };
  int forks = 0;
  for (int step = 0; step < 100000; ++step) {
    const int32_t slot = pick(kSlots);
    SlotModel& model = slots[static_cast<size_t>(slot)];
    const int32_t kind = pick(4);
    if (kind == 0) {
      resize({slot}, {});
      model = {};
    } else if (kind == 1) {
      const int32_t to = pick(kSlots);
      const int64_t copies = model.tokens % 32 != 0 ? kRows : 0;
      if (slots[static_cast<size_t>(to)].pages == 0 && to != slot &&
          arena_->free_pages() >= copies) {
        fork({{slot, to, {}}});
        slots[static_cast<size_t>(to)] = {model.tokens, (model.tokens + 31) / 32};
        ++forks;
      }
    } else {
      const int32_t tokens = std::min(pick(80), 256 - model.tokens);
      const int32_t wanted = std::max(model.pages, (model.tokens + tokens + 31) / 32);
      if ((wanted - model.pages) * kRows <= arena_->free_pages()) {
        const int64_t before = arena_->free_pages();
        resize({}, {{slot, {}, tokens}});
        ASSERT_EQ(before - arena_->free_pages(), (wanted - model.pages) * kRows) << step;
        model.pages = wanted;
        if (kind == 2) {
          add_tokens(slot, tokens);
          model.tokens += tokens;
        }
      }
    }
    for (int32_t s = 0; s < kSlots; ++s) {
      ASSERT_EQ(arena_->slot_pages(s), slots[static_cast<size_t>(s)].pages * kRows) << step;
    }
    if (step % 10 == 0) {
      arena_->check_integrity();
    }
  }
  EXPECT_GT(forks, 1000);
  resize({0, 1, 2, 3, 4, 5}, {});
  EXPECT_EQ(arena_->free_pages(), 150);
  arena_->check_integrity();
}

using KvPoolDeathTest = KvPoolTest;

TEST_F(KvPoolDeathTest, RefusesWhatOnlyABugCanAsk) {
  make(5, 2, 64);
  EXPECT_DEATH(resize({}, {{0, {}, 16}}), "not enough free pages");
  EXPECT_DEATH(resize({}, {{0, {}, 80}}), "more pages than a row has room for");
  EXPECT_DEATH(resize({}, {{2, {}, 1}}), "no such slot");
  EXPECT_DEATH(resize({2}, {}), "no such slot");
  EXPECT_DEATH(resize({}, {{0, {}, -1}}), "negative");
  EXPECT_DEATH(resize({}, {{0, {1, 1}, 1}}), "no such tier");
  EXPECT_DEATH(fork({{0, 0, {}}}), "no such slots");
  make(50, 2, 64);
  resize({}, {{0, {}, 16}, {1, {}, 16}});
  EXPECT_DEATH(fork({{0, 1, {}}}), "holds pages");
  EXPECT_DEATH(make(1, 1, 64, {kKvF16, kKvF32}), "f32 beside other formats");
  EXPECT_DEATH(make(1, 1, 64, {{16, 8}}), "a format without kernels");
}

TEST_F(KvPoolDeathTest, IntegrityNoticesWrongOwnersAHoleAndALoss) {
  make(30, 2, 64);
  resize({}, {{0, {}, 32}});
  int32_t* tables = arena_->pool().tables;
  const std::vector<int32_t> intact(tables, tables + 4);
  tables[1] = tables[0];
  EXPECT_DEATH(arena_->check_integrity(), "owners");
  tables[1] = 30;
  EXPECT_DEATH(arena_->check_integrity(), "outside the arena");
  tables[1] = kNoPage;
  tables[2] = intact[1];
  EXPECT_DEATH(arena_->check_integrity(), "two gaps|owners");
  std::copy(intact.begin(), intact.end(), tables);
  arena_->check_integrity();
  arena_->pool().free_range->count -= 1;
  EXPECT_DEATH(arena_->check_integrity(), "lost");
  arena_->pool().free_range->count += 2;
  EXPECT_DEATH(arena_->check_integrity(), "free");
}

TEST(MemoryMapping, TakesAllOfItsMemoryWhenPopulated) {
  constexpr int64_t kPage = 4096;
  constexpr int64_t kBytes = (int64_t{130} << 20) + 3 * kPage;
  MemoryMapping mapping(kBytes);
  ASSERT_NE(mapping.data(), nullptr);
  std::vector<unsigned char> resident(kBytes / kPage);
  const auto pages = [&] {
    EXPECT_EQ(mincore(mapping.data(), kBytes, resident.data()), 0);
    return std::count_if(resident.begin(), resident.end(), [](int page) { return page & 1; });
  };
  EXPECT_EQ(pages(), 0);
  ASSERT_TRUE(mapping.populate());
  EXPECT_EQ(pages(), kBytes / kPage);
  EXPECT_TRUE(MemoryMapping().populate()) << "nothing to do";
}

}  // namespace
}  // namespace tessera
