#include <gtest/gtest.h>

#include "tests/eval/lab/golden.h"

namespace tessera::lab {
namespace {

TEST(SnapKv, KeepsTheTokensThatKvpressKeeps) {
  expect_kept_as_golden("snapkv");
}

TEST(PyramidKv, KeepsTheTokensThatKvpressKeeps) {
  expect_kept_as_golden("pyramidkv");
}

TEST(AdaKv, KeepsTheTokensThatKvpressDoesNotMask) {
  expect_kept_as_golden("ada-kv");
}

TEST(ZigZagKv, KeepsTheTokensOfThePapersBudgets) {
  expect_kept_as_golden("zigzagkv");
}

TEST(WindowKv, KeepsTheWindowsOfTheAuthorsFormulas) {
  expect_kept_as_golden("windowkv");
}

TEST(KvCrush, KeepsTokensThatStandForDroppedOnes) {
  expect_kept_as_golden("kvcrush");
}

TEST(CompressKv, KeepsTheTokensOfItsHeadsWithinTheLayersBudgets) {
  expect_kept_as_golden("compresskv");
}

}  // namespace
}  // namespace tessera::lab
