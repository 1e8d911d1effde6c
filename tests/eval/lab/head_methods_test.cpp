#include <gtest/gtest.h>

#include "tests/eval/lab/golden.h"

namespace tessera::lab {
namespace {

TEST(FastGen, KeepsTheTokensOfEachHeadsPolicyWhileItGenerates) {
  expect_kept_while_generating("fastgen");
}

TEST(DuoAttention, KeepsAllTokensOfHeadsThatReachFarBack) {
  expect_kept_while_generating("duo-attention");
}

// The compensation token lies behind the four sinks.
void expect_compensated(const Cache& cache, const nlohmann::json& expected) {
  EXPECT_EQ(kept_positions(cache),
            expected["positions"].get<std::vector<std::vector<std::vector<int32_t>>>>());
  for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
    for (int32_t head = 0; head < cache.shape.kv_heads; ++head) {
      const nlohmann::json& mean =
          expected["means"][static_cast<size_t>(layer)][static_cast<size_t>(head)];
      if (mean.get<std::string>().empty()) continue;
      const HeadCache& own = cache.at(layer, head);
      const Rows row = unpack(mean, 17);
      for (size_t i = 0; i < 8; ++i) {
        EXPECT_NEAR(own.keys.row(4)[i], row.row(0)[i], 1e-5);
        EXPECT_NEAR(own.values.row(4)[i], row.row(0)[8 + i], 1e-5);
      }
      EXPECT_NEAR(own.bias[4], row.row(0)[16], 1e-5);
    }
  }
}

TEST(RazorAttention, CompensatesForTheTokensThatItDropsWhileItGenerates) {
  const nlohmann::json expected = golden("razor-attention");
  for (const auto& [numbers, kept] : expected.items()) {
    const auto method = make_method("razor-attention:" + numbers, golden_prompt().shape);
    Cache cache = compute_from_golden_model(*method, 64);
    expect_compensated(cache, kept["prompt"]);
    read_golden_tokens(*method, cache);
    expect_compensated(cache, kept["later"]);
  }
}

}  // namespace
}  // namespace tessera::lab
