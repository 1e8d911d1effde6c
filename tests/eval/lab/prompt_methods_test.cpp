#include <gtest/gtest.h>

#include "tests/eval/lab/shipped_model.h"

namespace tessera::lab {
namespace {

TEST(PromptCache, ComputesModulesByThemselvesAndNewTextOverAll) {
  expect_sequence_as_golden("prompt-cache");
}

TEST(KvZip, KeepsTheTokensThatKvpressKeeps) {
  expect_sequence_as_golden("kvzip");
}

TEST(SpecKv, KeepsTheTokensThatADraftsAnswerAttendsTo) {
  expect_sequence_as_golden("speckv");
}

TEST(SpecPc, ShortensThePromptAsThePaperDescribes) {
  expect_sequence_as_golden("specpc");
}

TEST(InfLlm, ReadsTheMostRelevantBlocksWhileAPromptIsComputedAndAfter) {
  expect_sequence_as_golden("infllm");
}

TEST(InfiniGen, ReadsWhatTheRehearsalInTheLayerBeforeFinds) {
  expect_sequence_as_golden("infinigen");
}

TEST(EpiCache, KeepsEpisodesAndReadsTheNearestToTheQuestion) {
  expect_sequence_as_golden("epicache");
}

}  // namespace
}  // namespace tessera::lab
