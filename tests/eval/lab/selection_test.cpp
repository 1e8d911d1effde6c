#include <gtest/gtest.h>

#include "tests/eval/lab/replay.h"

namespace tessera::lab {
namespace {

TEST(Quest, ReadsThePagesOfThePapersBounds) {
  expect_replay_as_golden("quest");
}

TEST(RetrievalAttention, ReadsTheNearestKeys) {
  expect_replay_as_golden("retrieval-attention");
}

TEST(SqueezedAttention, ReadsTheClustersAboveTheThreshold) {
  expect_replay_as_golden("squeezed-attention");
}

TEST(ClusterKv, ReadsTheNearestClustersAndMakesNewOnes) {
  expect_replay_as_golden("clusterkv");
}

}  // namespace
}  // namespace tessera::lab
