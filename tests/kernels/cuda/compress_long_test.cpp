#include "tests/kernels/cuda/compressed_arenas.h"

namespace tessera {
namespace {

class CudaCompressionLong : public CompressedArenas {};

TEST_P(CudaCompressionLong, LeavesWhatTheOracleLeaves) {
  uint32_t seed = 1;
  for (const KvPolicy& policy : policies()) {
    for (const int32_t prompt : {63, 200, 265}) {
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << " rule " << rule_text(policy) << " prompt " << prompt);
      begin(policy, 16, seed++);
      append(prompt);
      ASSERT_NO_FATAL_FAILURE(compress(prompt));
      while (tokens_ < 384 && policy.compress_generated) {
        append(kKvGroup - tokens_ % kKvGroup);
        ASSERT_NO_FATAL_FAILURE(compress(prompt));
      }
    }
  }
  EXPECT_GT(changed_, 10000);
}

TEST_P(CudaCompressionLong, ServesEveryPairOfTiersAndHeadDimension) {
  const std::pair<KvFormat, KvFormat> pairs[] = {
      {kKvK8V4, kKvK4V2},    {kKvF16, kKvK8V8},    {kKvK8V8, kKvK8V4},      {kKvK4V2, kKvK4V1},
      {kKvK4V8, kKvK2V4},    {kKvF16, {2, 1}},     {kKvF16, kKvF16},        {kKvF16, kKvS50},
      {kKvK8V8, kKvS70K4V4}, {kKvS50, kKvS70K4V4}, {kKvS50K4V4, kKvS70K4V4}};
  uint32_t seed = 100;
  for (const auto& [high, low] : pairs) {
    for (const int32_t head_dim : {24, 80, 128}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " head_dim " << head_dim);
      KvPolicy policy = with_formats(all_queries(), high, low);
      policy.keep = KeepBudget{.amount = KvAmount::of_share(0.7f), .high_share = 0.5f};
      begin(policy, head_dim, seed++);
      append(230);
      ASSERT_NO_FATAL_FAILURE(compress(230));
      append(26);
      ASSERT_NO_FATAL_FAILURE(compress(230));
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaCompressionLong);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaCompressionLong, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
