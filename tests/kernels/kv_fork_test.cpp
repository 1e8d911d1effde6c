#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_arena.h"

namespace tessera {
namespace {

constexpr int32_t kCapacity = 16;
constexpr KvPageLayout kLayout = KvPageLayout::make(kKvF16, 8, kCapacity);

class KvForkTest : public testing::Test {
 protected:
  void make(int32_t pages, int32_t slots, int32_t layers, int32_t kv_heads, int32_t context) {
    arena_ = KvArena::make({kLayout, pages, slots, layers, kv_heads, context});
    ASSERT_NE(arena_, nullptr);
    rows_ = layers * kv_heads;
  }
  void resize(const std::vector<KvRowResize>& changes) {
    backend_.kv_resize({.pool = arena_->pool(), .changes = changes}, threads_.stream());
  }
  void fork(const std::vector<KvRowFork>& forks) {
    backend_.kv_fork({.pool = arena_->pool(), .pages = arena_->view(), .forks = forks},
                     threads_.stream());
  }
  int32_t* row(int32_t slot, int32_t row) {
    return arena_->pool().tables + (slot * rows_ + row) * arena_->view().row_pages;
  }
  std::span<uint8_t> page(int32_t id) {
    return {reinterpret_cast<uint8_t*>(arena_->view().page(id)),
            static_cast<size_t>(kLayout.page_bytes)};
  }
  int32_t owners(int32_t id) { return arena_->pool().owners[id]; }

  const Backend& backend_ = cpu_backend(CpuIsa::scalar);
  ThreadPool threads_{2};
  std::unique_ptr<KvArena> arena_;
  int32_t rows_ = 0;
};

TEST_F(KvForkTest, SharesFullPagesAndCopiesThePartlyFilledOne) {
  make(40, 3, 2, 2, 80);
  resize({{0, 0, 4}});
  for (int32_t id = 0; id < 16; ++id) {
    std::fill(page(id).begin(), page(id).end(), static_cast<uint8_t>(id + 1));
  }
  fork({{.source = 0, .target = 1, .tokens = 2 * kCapacity + 5},
        {.source = 0, .target = 2, .tokens = 2 * kCapacity + 5}});
  arena_->check_integrity();
  EXPECT_EQ(arena_->free_pages(), 40 - 16 - 2 * 4);
  for (int32_t r = 0; r < rows_; ++r) {
    for (const int32_t slot : {1, 2}) {
      EXPECT_EQ(row(slot, r)[0], row(0, r)[0]);
      EXPECT_EQ(row(slot, r)[1], row(0, r)[1]);
      EXPECT_NE(row(slot, r)[2], row(0, r)[2]);
      EXPECT_EQ(row(slot, r)[3], kNoPage) << "source's later pages are its own";
      EXPECT_TRUE(std::equal(page(row(slot, r)[2]).begin(), page(row(slot, r)[2]).end(),
                             page(row(0, r)[2]).begin()));
    }
    EXPECT_NE(row(1, r)[2], row(2, r)[2]);
    EXPECT_EQ(owners(row(0, r)[0]), 3);
    EXPECT_EQ(owners(row(0, r)[2]), 1);
  }
}

TEST_F(KvForkTest, CopiesNothingAtAPageBorder) {
  make(8, 2, 1, 2, 64);
  resize({{0, 0, 3}});
  fork({{.source = 0, .target = 1, .tokens = 2 * kCapacity}});
  arena_->check_integrity();
  EXPECT_EQ(arena_->free_pages(), 2);
  EXPECT_EQ(arena_->slot_pages(1), 4);
  resize({{1, 2, 3}});
  arena_->check_integrity();
  EXPECT_NE(row(1, 0)[2], row(0, 0)[2]);
}

TEST_F(KvForkTest, SharesNothingBelowAPage) {
  make(8, 2, 1, 2, 64);
  resize({{0, 0, 1}});
  fork({{.source = 0, .target = 1, .tokens = kCapacity - 1}});
  arena_->check_integrity();
  EXPECT_EQ(arena_->free_pages(), 4);
  EXPECT_EQ(owners(row(0, 0)[0]), 1);
}

TEST_F(KvForkTest, FreesASharedPageWithItsLastOwner) {
  make(8, 3, 1, 2, 64);
  resize({{0, 0, 2}});
  fork({{.source = 0, .target = 1, .tokens = 2 * kCapacity},
        {.source = 0, .target = 2, .tokens = 2 * kCapacity}});
  resize({{0, 2, 0}});
  arena_->check_integrity();
  EXPECT_EQ(arena_->free_pages(), 4);
  resize({{2, 2, 0}, {1, 2, 0}});
  arena_->check_integrity();
  EXPECT_EQ(arena_->free_pages(), 8);
}

TEST_F(KvForkTest, GivesPagesOfTheLastOwnersToWhatGrowsInTheSameCall) {
  make(4, 3, 1, 2, 64);
  resize({{0, 0, 2}});
  fork({{.source = 0, .target = 1, .tokens = 2 * kCapacity}});
  resize({{2, 0, 2}, {0, 2, 0}, {1, 2, 0}});
  arena_->check_integrity();
  EXPECT_EQ(arena_->free_pages(), 0);
}

// Random growth, forks and ends, against the integrity of owners and the bytes of every page.
TEST_F(KvForkTest, KeepsOwnersAndBytesThroughRandomUse) {
  constexpr uint32_t kSeed = 20261120;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr int32_t kSlots = 6;
  constexpr int32_t kRowPages = 9;
  make(120, kSlots, 2, 2, kCapacity * kRowPages);
  std::mt19937 random(kSeed);
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  std::vector<int32_t> tokens(kSlots, 0);
  const auto pages_of = [](int32_t count) {
    return static_cast<int32_t>(div_ceil(count, kCapacity));
  };
  std::vector<std::vector<uint8_t>> stamps(kSlots);  // of each token, as its page should say
  const auto stamp = [&](int32_t slot, int32_t token) -> uint8_t& {
    return page(
        row(slot, token % rows_)[token / kCapacity])[static_cast<size_t>(token % kCapacity)];
  };
  for (int step = 0; step < 20000; ++step) {
    const int32_t slot = pick(0, kSlots - 1);
    int32_t& count = tokens[static_cast<size_t>(slot)];
    auto& written = stamps[static_cast<size_t>(slot)];
    const int32_t source = pick(0, kSlots - 1);
    const int32_t stored = tokens[static_cast<size_t>(source)];
    if (pick(0, 3) == 0) {
      resize({{slot, pages_of(count), 0}});
      count = 0;
      written.clear();
    } else if (count == 0 && stored > 0 && pick(0, 1) == 0 && arena_->free_pages() >= rows_) {
      count = pick(1, stored);
      const auto& begin = stamps[static_cast<size_t>(source)];
      written.assign(begin.begin(), begin.begin() + count);
      fork({{source, slot, count}});
    } else {
      const int32_t wanted = std::min(count + pick(1, 40), kCapacity * kRowPages);
      if ((pages_of(wanted) - pages_of(count)) * rows_ <= arena_->free_pages()) {
        resize({{slot, pages_of(count), pages_of(wanted)}});
        for (; count < wanted; ++count) {
          written.push_back(static_cast<uint8_t>(pick(0, 255)));
          stamp(slot, count) = written.back();
        }
      }
    }
    arena_->check_integrity();
    for (int32_t other = 0; other < kSlots; ++other) {
      for (int32_t t = 0; t < tokens[static_cast<size_t>(other)]; ++t) {
        ASSERT_EQ(stamp(other, t), stamps[static_cast<size_t>(other)][static_cast<size_t>(t)])
            << "step " << step << " slot " << other << " token " << t;
      }
    }
  }
}

using KvForkDeathTest = KvForkTest;

TEST_F(KvForkDeathTest, RefusesWhatOnlyABugCanAsk) {
  make(6, 2, 1, 2, 64);
  resize({{0, 0, 3}});
  EXPECT_DEATH(fork({{0, 0, 1}}), "no such slots");
  EXPECT_DEATH(fork({{0, 2, 1}}), "no such slots");
  EXPECT_DEATH(fork({{0, 1, 0}}), "beyond the row");
  EXPECT_DEATH(fork({{0, 1, 65}}), "beyond the row");
  EXPECT_DEATH(fork({{0, 1, 49}}), "not enough free pages");
  EXPECT_DEATH(fork({{0, 1, 64}}), "tokens without a page");
  EXPECT_DEATH(fork({{1, 0, 16}}), "the target holds pages");
}

}  // namespace
}  // namespace tessera
