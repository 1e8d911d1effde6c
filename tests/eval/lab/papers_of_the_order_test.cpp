#include <gtest/gtest.h>

#include "tests/eval/lab/golden.h"
#include "tests/eval/lab/replay.h"

namespace tessera::lab {
namespace {

TEST(Mustafar, PrunesAndCountsAsThePaperDescribes) {
  expect_replay_as_golden("mustafar-50");
}

TEST(Mustafar, PrunesSeventyPercentByDefaultUnderThatName) {
  const auto named = make_method("mustafar-70", golden_prompt().shape);
  const auto numbered = make_method("mustafar-50:keys=0.7:values=0.7", golden_prompt().shape);
  const Replay of_name = replay_golden_prompt(*named, 90);
  EXPECT_EQ(of_name.bytes, replay_golden_prompt(*numbered, 90).bytes);
}

TEST(KvCompress, EvictsTheBlocksThatThePapersFormulasChoose) {
  expect_replay_as_golden("kv-compress");
}

TEST(LeanKv, KeepsAndLowersTokensAsThePaperDescribes) {
  expect_replay_as_golden("leankv");
}

}  // namespace
}  // namespace tessera::lab
