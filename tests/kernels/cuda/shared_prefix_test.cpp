#include <gtest/gtest.h>

#include "tests/kernels/shared_sequences.h"

namespace tessera {
namespace {

class CudaSharedPrefix : public testing::TestWithParam<Device> {
 protected:
  static void expect_equal_bits(const SharedShape& shape, int32_t tokens, uint32_t seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    SharedSequences sequences(shape, random_branches(random, capacity_of(shape), tokens), seed);
    for (const bool scored : {false, true}) {
      SCOPED_TRACE(scored ? "scored" : "not scored");
      const auto alone = sequences.attend(GetParam(), {.shared = false, .scored = scored});
      ASSERT_EQ(alone, sequences.attend(GetParam(), {.shared = true, .scored = scored}));
      // Weights of tokens that a query does not see are not defined.
      ASSERT_EQ(alone.results,
                sequences.attend(GetParam(), {.scored = scored, .divided = true}).results)
          << "in slices, if they are few";
    }
  }
};

TEST_P(CudaSharedPrefix, HasTheBitsOfEverySequenceReadingForItself) {
  uint32_t seed = 1;
  for (const KvFormat format : {kKvF32, kKvF16, kKvK8V4, kKvK4V2, kKvS70}) {
    for (SharedShape shape :
         {SharedShape{.gqa_ratio = 2},
          SharedShape{.head_dim = 48, .kv_heads = 3, .gqa_ratio = 3, .page_tokens = 64},
          SharedShape{.kv_heads = 1, .gqa_ratio = 1, .page_tokens = 48}}) {
      shape.high = format;
      expect_equal_bits(shape, seed % 2 == 0 ? 1700 : 1100, seed);
      ++seed;
    }
  }
}

// Arenas of one format: a sequence's own splits and shared splits have different kernels.
TEST_P(CudaSharedPrefix, HasTheBitsOfEverySequenceReadingForItselfInOneFormat) {
  uint32_t seed = 40;
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvK4V2, kKvS70}) {
    for (const int32_t head_dim : {64, 128}) {
      expect_equal_bits({.high = format,
                         .low = format,
                         .head_dim = head_dim,
                         .kv_heads = 1,
                         .gqa_ratio = 4,
                         .page_tokens = 64},
                        1200, seed++);
    }
  }
}

TEST_P(CudaSharedPrefix, IsSharedBySequencesWhoseWindowHasIt) {
  for (const int32_t sliding_window : {600, 1100, 4096}) {
    SharedSequences sequences(
        {.low = kKvF16, .sliding_window = sliding_window},
        {{0, 0, {1280, 0}}, {0, 40, {64, 0}}, {0, 80, {128, 0}}, {2, 80, {0, 0}}}, 7);
    ASSERT_EQ(sequences.attend(GetParam(), {.shared = false}),
              sequences.attend(GetParam(), {.shared = true}))
        << "window " << sliding_window;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaSharedPrefix, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSharedPrefix);

}  // namespace
}  // namespace tessera
