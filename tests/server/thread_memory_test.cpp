#include "server/grammar/thread_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace tessera {
namespace {

constexpr int64_t kMib = 1 << 20;

TEST(ThreadMemory, CountsWhatThisThreadHasAndTheMostItHad) {
  const auto before = std::make_unique<std::vector<char>>(kMib);
  {
    const ThreadMemory memory;
    EXPECT_EQ(ThreadMemory::bytes(), 0);
    auto half = std::make_unique<std::vector<char>>(kMib / 2);
    auto whole = std::make_unique<std::vector<char>>(kMib);
    EXPECT_GE(ThreadMemory::bytes(), 3 * kMib / 2);
    EXPECT_LT(ThreadMemory::bytes(), 2 * kMib);
    whole.reset();
    EXPECT_LT(ThreadMemory::bytes(), kMib);
    EXPECT_GE(ThreadMemory::most_bytes(), 3 * kMib / 2);
  }
  EXPECT_EQ(ThreadMemory::bytes(), 0) << "no longer counted";
  const ThreadMemory again;
  EXPECT_EQ(ThreadMemory::most_bytes(), 0);
}

TEST(ThreadMemory, CountsNothingOfOtherThreads) {
  const ThreadMemory memory;
  std::unique_ptr<std::vector<char>> other;
  int64_t of_other = -1;
  std::thread([&] {
    other = std::make_unique<std::vector<char>>(kMib);
    of_other = ThreadMemory::bytes();
  }).join();
  EXPECT_EQ(of_other, 0);
  EXPECT_LT(ThreadMemory::bytes(), kMib / 2);
}

}  // namespace
}  // namespace tessera
