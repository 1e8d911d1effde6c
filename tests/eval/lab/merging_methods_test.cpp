#include <gtest/gtest.h>

#include "tests/eval/lab/golden.h"

namespace tessera::lab {
namespace {

void expect_rows(const Rows& rows, const nlohmann::json& packed) {
  const Rows expected = unpack(packed, rows.cols());
  ASSERT_EQ(rows.rows(), expected.rows());
  for (int64_t i = 0; i < rows.rows(); ++i) {
    for (size_t j = 0; j < rows.row(i).size(); ++j) {
      EXPECT_NEAR(rows.row(i)[j], expected.row(i)[j], 1e-5) << "entry " << i;
    }
  }
}

// The golden files have the heads of layer 1.
void expect_merged_as_golden(const std::string& name) {
  const nlohmann::json all = golden(name);
  for (const auto& [numbers, expected] : all.items()) {
    SCOPED_TRACE(numbers);
    const auto method = make_method(name + ":" + numbers, golden_prompt().shape);
    const Cache cache = compute_from_golden_model(*method, golden_prompt().size());
    for (int32_t head = 0; head < cache.shape.kv_heads; ++head) {
      const auto place = static_cast<size_t>(head);
      const HeadCache& own = cache.at(1, head);
      EXPECT_EQ(own.positions, expected["positions"][place].get<std::vector<int32_t>>());
      expect_rows(own.keys, expected["keys"][place]);
      expect_rows(own.values, expected["values"][place]);
    }
  }
}

TEST(Ems, MergesTokensIntoTheMostSimilarKeptOnes) {
  expect_merged_as_golden("ems");
}

TEST(KvMerger, MergesConsecutiveTokensWithSimilarKeys) {
  expect_merged_as_golden("kvmerger");
}

}  // namespace
}  // namespace tessera::lab
