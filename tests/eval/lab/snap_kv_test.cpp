#include <gtest/gtest.h>

#include "tests/eval/lab/golden.h"

namespace tessera::lab {
namespace {

TEST(SnapKv, KeepsTheTokensThatKvpressKeeps) {
  expect_kept_as_golden("snapkv");
}

}  // namespace
}  // namespace tessera::lab
