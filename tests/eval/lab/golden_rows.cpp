#include "tests/eval/lab/golden_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/eval/lab/golden.h"

namespace tessera::lab {
namespace {

void expect_near(const Rows& expected, const Rows& found, const char* of) {
  ASSERT_EQ(expected.rows(), found.rows()) << of;
  float most = 0;
  float error = 0;
  for (int64_t r = 0; r < expected.rows(); ++r) {
    for (size_t c = 0; c < expected.row(r).size(); ++c) {
      most = std::max(most, std::fabs(expected.row(r)[c]));
      error = std::max(error, std::fabs(expected.row(r)[c] - found.row(r)[c]));
    }
  }
  EXPECT_LT(error, 2e-4f * most) << of;
}

}  // namespace

void expect_rows_as_golden(std::string_view name) {
  for (const nlohmann::json& expected : golden(name)) {
    const auto numbers = expected["numbers"].get<std::string>();
    SCOPED_TRACE(numbers);
    const auto method = make_method(std::string(name) + ":" + numbers, golden_prompt().shape);
    Cache cache = compute_from_golden_model(*method, expected["prompt"]);
    read_golden_tokens(*method, cache);
    EXPECT_EQ(method->bytes(cache), expected["bytes"].get<int64_t>());
    for (const nlohmann::json& rows : expected["rows"]) {
      const HeadCache& head = cache.at(rows["layer"], rows["head"]);
      SCOPED_TRACE("layer " + rows["layer"].dump());
      expect_near(unpack(rows["keys"], cache.shape.head_dim), head.keys, "keys");
      expect_near(unpack(rows["values"], cache.shape.head_dim), head.values, "values");
    }
  }
}

}  // namespace tessera::lab
