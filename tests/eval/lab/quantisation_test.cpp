#include <gtest/gtest.h>

#include <string>

#include "tests/eval/lab/golden.h"
#include "tests/eval/lab/golden_rows.h"

namespace tessera::lab {
namespace {

// Each against a rendering of its paper's formulas in numpy (oracles/NAME.py), over a prompt and
// generated tokens.
class Quantisation : public testing::TestWithParam<const char*> {};

TEST_P(Quantisation, MakesTheRowsAndBytesOfItsPaper) {
  expect_rows_as_golden(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Of, Quantisation,
                         testing::Values("kivi", "kvquant", "gear", "mikv", "zipcache", "kvarn",
                                         "oscar", "rotatekv", "xquant", "minicache", "xkv"),
                         [](const auto& of) { return std::string(of.param); });

TEST(PyramidInfer, KeepsTheTokensOfEachLayerThatItsPaperKeeps) {
  const nlohmann::json expected = golden("pyramidinfer");
  for (const auto& [numbers, kept] : expected.items()) {
    SCOPED_TRACE(numbers);
    const auto method = make_method("pyramid-infer:" + numbers, golden_prompt().shape);
    constexpr int32_t kPromptTokens = 64;
    Cache cache = compute_from_golden_model(*method, kPromptTokens);
    EXPECT_EQ(nlohmann::json(kept_positions(cache)), kept["prompt"]);
    read_golden_tokens(*method, cache);
    EXPECT_EQ(nlohmann::json(kept_positions(cache)), kept["later"]);
  }
}

}  // namespace
}  // namespace tessera::lab
