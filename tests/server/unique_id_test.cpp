#include "server/base/unique_id.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <vector>

namespace tessera {
namespace {

// Undoes the last steps of splitmix64.
uint64_t state_of(uint64_t z) {
  z = (z ^ (z >> 31) ^ (z >> 62)) * 0x319642b2d24d8ec3;
  z = (z ^ (z >> 27) ^ (z >> 54)) * 0x96de1b173f119089;
  return z ^ (z >> 30) ^ (z >> 60);
}

TEST(UniqueId, TellsNothingAboutTheNextOne) {
  uint64_t before = state_of(unique_number());
  for (int i = 0; i < 100; ++i) {
    const uint64_t state = state_of(unique_number());
    EXPECT_NE(state - before, 0x9e3779b97f4a7c15) << "the states of that generator are a sequence";
    before = state;
  }
}

TEST(UniqueId, IsDifferentOnEveryThread) {
  std::vector<std::vector<uint64_t>> numbers(4);
  std::vector<std::thread> threads;
  for (std::vector<uint64_t>& mine : numbers) {
    threads.emplace_back(
        [&mine] { std::generate_n(std::back_inserter(mine), 1000, unique_number); });
  }
  std::set<uint64_t> all;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    threads[i].join();
    all.insert(numbers[i].begin(), numbers[i].end());
  }
  EXPECT_EQ(all.size(), 4000U);
}

TEST(UniqueId, HasEachLetterAsOften) {
  std::map<char, int> counts;
  for (const char letter : unique_letters(360'000)) {
    ++counts[letter];
  }
  ASSERT_EQ(counts.size(), 36U);
  for (const auto& [letter, count] : counts) {
    EXPECT_NEAR(count, 10'000, 700) << letter << ": seven standard deviations";
  }
}

}  // namespace
}  // namespace tessera
