#include "engine/kv/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

KvCacheOptions small_options() {
  return {.format = kKvF16,
          .page_tokens = 16,
          .layers = 3,
          .kv_heads = 2,
          .head_dim = 8,
          .slots = 5,
          .context = 100,
          .bytes = 0};
}

class KvCacheTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<KvCache>> make(const KvCacheOptions& options) {
    return KvCache::create(options, cpu_backend(CpuIsa::scalar), threads_.stream());
  }

  ThreadPool threads_{1};
};

TEST_F(KvCacheTest, HoldsWholeContextsForAllSlotsByDefault) {
  const auto kv = make(small_options());
  ASSERT_TRUE(kv.ok()) << kv.status();
  EXPECT_EQ((*kv)->pages_total(), 5 * 6 * 7);  // slots, heads, pages of 16 for 100 tokens
  EXPECT_EQ((*kv)->token_capacity(), 5 * 7 * 16);
  EXPECT_EQ((*kv)->budget().pages_free, 5 * 6 * 7);
  EXPECT_EQ((*kv)->budget().pages_for(0), 0);
  EXPECT_EQ((*kv)->budget().pages_for(16), 6);
  EXPECT_EQ((*kv)->budget().pages_for(17), 12);
}

TEST_F(KvCacheTest, RefusesMemoryForLessThanOneContextWithTheNumbers) {
  KvCacheOptions options = small_options();
  const int64_t page_bytes = KvPageLayout::make(kKvF16, 8, 16).page_bytes;
  options.bytes = 42 * page_bytes - 1;
  const auto refused = make(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("needs 42"));
  options.bytes = 42 * page_bytes;
  EXPECT_TRUE(make(options).ok());
}

TEST_F(KvCacheTest, RefusesMorePagesThanPageIdsCanName) {
  KvCacheOptions options = small_options();
  options.bytes = int64_t{1} << 50;
  EXPECT_EQ(make(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(KvCacheTest, GivesEveryHeadItsOwnPagesAndTakesThemBack) {
  const auto kv = std::move(make(small_options())).value();
  const int32_t slot = kv->open_slot();
  const KvReservation wanted[] = {{slot, 33}};
  kv->reserve(wanted);
  kv->check_integrity();
  EXPECT_EQ(kv->slot_pages(slot), 3 * 6);
  const KvPagesView view = kv->view();
  std::set<int32_t> pages;
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      const int32_t* row = view.row(slot, layer, head);
      pages.insert(row, row + 3);
      EXPECT_EQ(row[3], kNoPage);
    }
  }
  EXPECT_EQ(pages.size(), 18);
  EXPECT_FALSE(pages.contains(kNoPage));

  const int32_t closing[] = {slot};
  kv->release(closing);
  kv->check_integrity();
  EXPECT_EQ(kv->budget().pages_free, kv->pages_total());
}

TEST_F(KvCacheTest, KeepsAPageWhereItIsWhenTheSequenceGrows) {
  const auto kv = std::move(make(small_options())).value();
  const int32_t slot = kv->open_slot();
  const KvReservation first[] = {{slot, 20}};
  kv->reserve(first);
  const int32_t before[] = {kv->view().row(slot, 2, 1)[0], kv->view().row(slot, 2, 1)[1]};
  const KvReservation more[] = {{slot, 100}};
  kv->reserve(more);
  EXPECT_EQ(kv->view().row(slot, 2, 1)[0], before[0]);
  EXPECT_EQ(kv->view().row(slot, 2, 1)[1], before[1]);
}

TEST_F(KvCacheTest, CountsASharedPageOnce) {
  const auto kv = std::move(make(small_options())).value();
  const int32_t source = kv->open_slot();
  const KvReservation wanted[] = {{source, 60}};
  kv->reserve(wanted);  // 4 pages a head
  const int64_t before = kv->budget().pages_free;
  const KvRowFork forks[] = {{source, kv->open_slot(), 40}, {source, kv->open_slot(), 40}};
  kv->fork(forks);
  kv->check_integrity();
  EXPECT_EQ(kv->budget().pages_free, before - 2 * 6) << "a copy of the third page for each";
  EXPECT_EQ(kv->slot_pages(forks[0].target), 3 * 6);
  const int32_t closing[] = {source};
  kv->release(closing);
  kv->check_integrity();
  EXPECT_EQ(kv->budget().pages_free, before - 2 * 6 + 2 * 6) << "two pages stay with the forks";
  const KvRowFork again[] = {{forks[1].target, kv->open_slot(), 40}};
  kv->fork(again);
  kv->check_integrity();
  const int32_t others[] = {forks[0].target, forks[1].target, again[0].target};
  kv->release(others);
  kv->check_integrity();
  EXPECT_EQ(kv->budget().pages_free, kv->pages_total());
}

TEST_F(KvCacheTest, SharesAtAPageBorderWithoutACopyAndNothingBelowAPage) {
  const auto kv = std::move(make(small_options())).value();
  const int32_t source = kv->open_slot();
  const KvReservation wanted[] = {{source, 50}};
  kv->reserve(wanted);
  const int64_t before = kv->budget().pages_free;
  const KvRowFork whole[] = {{source, kv->open_slot(), 32}};
  kv->fork(whole);
  kv->check_integrity();
  EXPECT_EQ(kv->budget().pages_free, before);
  const int32_t other = kv->open_slot();
  const KvReservation few[] = {{other, 15}};
  kv->reserve(few);
  const KvRowFork part[] = {{other, kv->open_slot(), 15}};
  kv->fork(part);
  kv->check_integrity();
  EXPECT_EQ(kv->budget().pages_free, before - 12);
}

TEST_F(KvCacheTest, AbortsOnForksThatOnlyABugCanAsk) {
  const auto kv = std::move(make(small_options())).value();
  const int32_t source = kv->open_slot();
  const int32_t target = kv->open_slot();
  const KvReservation wanted[] = {{source, 60}};
  kv->reserve(wanted);
  const KvRowFork too_long[] = {{source, target, 61}};
  EXPECT_DEATH(kv->fork(too_long), "more tokens than there are");
  const KvRowFork first[] = {{source, target, 40}};
  kv->fork(first);
  EXPECT_DEATH(kv->fork(first), "holds pages");
  const KvRowFork other[] = {{source, kv->open_slot(), 20}};
  EXPECT_DEATH(kv->fork(other), "share other pages");
}

TEST_F(KvCacheTest, AbortsOnWhatOnlyABugCanAsk) {
  KvCacheOptions options = small_options();
  options.bytes = 42 * KvPageLayout::make(kKvF16, 8, 16).page_bytes;
  const auto kv = std::move(make(options)).value();
  const int32_t slot = kv->open_slot();
  const int32_t other = kv->open_slot();
  const KvReservation whole[] = {{slot, 100}};
  kv->reserve(whole);
  const KvReservation too_much[] = {{other, 1}};
  EXPECT_DEATH(kv->reserve(too_much), "more pages are reserved than are free");
  const KvReservation too_long[] = {{slot, 101}};
  EXPECT_DEATH(kv->reserve(too_long), "exceeds the context");
  const KvReservation shorter[] = {{slot, 99}};
  EXPECT_DEATH(kv->reserve(shorter), "shrinks");
  const int32_t closed[] = {4};
  EXPECT_DEATH(kv->release(closed), "closed");
}

TEST_F(KvCacheTest, AccountsForEveryPageUnderRandomUse) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    KvCacheOptions options = small_options();
    options.page_tokens = pick(1, 40);
    options.bytes = KvPageLayout::make(kKvF16, 8, options.page_tokens).page_bytes * pick(42, 150);
    const auto kv = std::move(make(options)).value();
    std::vector<KvReservation> open;
    const int32_t shared = pick(1, options.context);  // tokens of every fork
    std::set<int32_t> families;  // slots that began as a fork, or were the source of one
    for (int step = 0; step < 500; ++step) {
      const auto source =
          std::find_if(open.begin(), open.end(), [&](const KvReservation& sequence) {
            return sequence.tokens >= shared &&
                   (families.empty() || families.contains(sequence.slot));
          });
      if (source != open.end() && std::ssize(open) < options.slots && pick(0, 1) == 0) {
        const int64_t copies = kv->budget().pages_for(shared) - kv->budget().full_pages(shared);
        if (copies <= kv->budget().pages_free) {
          const int64_t before = kv->budget().pages_free;
          const KvRowFork forks[] = {{source->slot, kv->open_slot(), shared}};
          kv->fork(forks);
          kv->check_integrity();
          ASSERT_EQ(kv->budget().pages_free, before - copies);
          families.insert({source->slot, forks[0].target});
          open.push_back({forks[0].target, shared});
        }
      }
      if (pick(0, 2) == 0 && std::ssize(open) < options.slots) {
        open.push_back({kv->open_slot(), 0});
      }
      int64_t free = kv->budget().pages_free;
      for (KvReservation& sequence : open) {
        const int32_t tokens = pick(sequence.tokens, options.context);
        const int64_t growth =
            kv->budget().pages_for(tokens) - kv->budget().pages_for(sequence.tokens);
        if (pick(0, 1) == 0 && growth <= free) {
          free -= growth;
          sequence.tokens = tokens;
        }
      }
      kv->reserve(open);
      kv->check_integrity();
      ASSERT_EQ(kv->budget().pages_free, free);

      std::vector<int32_t> closing;
      std::erase_if(open, [&](const KvReservation& sequence) {
        const bool closes = pick(0, 9) == 0;
        if (closes) {
          closing.push_back(sequence.slot);
          families.erase(sequence.slot);
        }
        return closes;
      });
      kv->release(closing);
      kv->check_integrity();
    }
  }
}

}  // namespace
}  // namespace tessera
