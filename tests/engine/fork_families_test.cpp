#include "engine/kv/fork_families.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera {
namespace {

TEST(ForkFamilies, CountThePagesThatOneSlotAloneHolds) {
  ForkFamilies families(4);
  EXPECT_EQ(families.shared(0), 0);
  families.fork(0, 1, 5);
  families.fork(1, 2, 3);
  families.fork(0, 3, 8);
  EXPECT_EQ(families.shared(0), 8);
  EXPECT_EQ(families.shared(1), 5);
  EXPECT_EQ(families.shared(2), 3);
  families.leave(3);
  families.leave(0);
  EXPECT_EQ(families.shared(1), 3);
  families.leave(1);
  EXPECT_EQ(families.shared(2), 0);
}

// Compares with a table of the pages that each two slots share.
TEST(ForkFamilies, AgreeWithEveryPairThroughRandomForks) {
  constexpr int32_t kSlots = 9;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](int64_t max) {
      return std::uniform_int_distribution<int64_t>(0, max)(random);
    };
    ForkFamilies families(kSlots);
    std::vector<std::vector<int64_t>> common(kSlots, std::vector<int64_t>(kSlots, 0));
    std::vector<int64_t> pages(kSlots, -1);  // of each open slot; -1: closed
    for (int step = 0; step < 400; ++step) {
      const auto slot = static_cast<size_t>(pick(kSlots - 1));
      const auto source = static_cast<size_t>(pick(kSlots - 1));
      if (pages[slot] >= 0) {
        families.leave(static_cast<int32_t>(slot));
        pages[slot] = -1;
        for (size_t other = 0; other < kSlots; ++other) {
          common[slot][other] = common[other][slot] = 0;
        }
      } else if (pages[source] >= 0) {
        const int64_t shared = pick(pages[source]);
        families.fork(static_cast<int32_t>(source), static_cast<int32_t>(slot), shared);
        for (size_t other = 0; other < kSlots; ++other) {
          const int64_t of_pair =
              other == source ? shared : std::min(common[source][other], shared);
          common[slot][other] = common[other][slot] = other == slot ? 0 : of_pair;
        }
        pages[slot] = shared + pick(3);
      } else {
        pages[slot] = pick(20);
      }
      for (size_t i = 0; i < kSlots; ++i) {
        const int64_t max = *std::max_element(common[i].begin(), common[i].end());
        ASSERT_EQ(families.shared(static_cast<int32_t>(i)), max) << "slot " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
