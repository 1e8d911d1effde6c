// Masks of grammars that are kept.

#include "server/grammar/mask_cache.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

std::vector<uint32_t> mask_of(int32_t number) {
  return std::vector<uint32_t>(100, static_cast<uint32_t>(number));
}

TEST(MaskCache, FindsMasksByTheirWholeKeys) {
  MaskCache cache(1 << 16);
  cache.put(std::vector<int32_t>{1, 2}, mask_of(5));
  cache.put(std::vector<int32_t>{1, 2, 0}, mask_of(6));
  EXPECT_EQ(*cache.find(std::vector<int32_t>{1, 2}), mask_of(5));
  EXPECT_EQ(*cache.find(std::vector<int32_t>{1, 2, 0}), mask_of(6));
  EXPECT_EQ(cache.find(std::vector<int32_t>{1}), nullptr);
  EXPECT_EQ(cache.find(std::vector<int32_t>{1, 3}), nullptr);
}

TEST(MaskCache, KeepsWhatIsUsedAndStaysWithinItsBytes) {
  constexpr int64_t kBytes = 100 * 400;  // less than 100 masks of 400 bytes
  MaskCache cache(kBytes);
  cache.put(std::vector<int32_t>{-1}, mask_of(-1));
  for (int32_t i = 0; i < 1000; ++i) {
    cache.put(std::vector<int32_t>{i}, mask_of(i));
    ASSERT_NE(cache.find(std::vector<int32_t>{-1}), nullptr) << "used all the time, lost at " << i;
    ASSERT_NE(cache.find(std::vector<int32_t>{i}), nullptr);
    ASSERT_LE(cache.bytes(), kBytes);
  }
  EXPECT_GT(cache.bytes(), kBytes / 3);
  int kept = 0;
  for (int32_t i = 0; i < 1000; ++i) {
    kept += cache.find(std::vector<int32_t>{i}) != nullptr ? 1 : 0;
  }
  EXPECT_GT(kept, 30);
  EXPECT_LT(kept, 100);
}

TEST(MaskCache, KeepsNoMaskAboveItsBytes) {
  MaskCache cache(500);
  cache.put(std::vector<int32_t>{1}, mask_of(1));
  EXPECT_EQ(cache.find(std::vector<int32_t>{1}), nullptr);
}

}  // namespace
}  // namespace tessera
