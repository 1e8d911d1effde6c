#include <gtest/gtest.h>

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
                         testing::Values("kivi", "gear", "kvarn", "oscar", "rotatekv", "xquant",
                                         "minicache", "xkv"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace tessera::lab
