// Plans that tighten budgets before they preempt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "tests/engine/candidates.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A decoding sequence that needs a page for each row, and the rows of pages that each of its first
// steps frees. `steps`: taken before.
Candidate tightenable(int64_t order, std::vector<int64_t> rows_freed, int32_t steps = 0) {
  Candidate candidate = running(order, 512, 511);
  int64_t freed = 0;
  for (size_t i = 0; i < kMaxTightenings; ++i) {
    freed += i < rows_freed.size() ? rows_freed[i] * kHeads : 0;
    candidate.tightening.freed[i] = freed;
  }
  candidate.tightening.steps = steps;
  return candidate;
}

TEST(Scheduler, TightensBudgetsBeforeItPreempts) {
  const Planned step = plan({8, 8}, {tightenable(1, {}), tightenable(2, {1})}, budget(1));
  EXPECT_THAT(step.preempted, IsEmpty());
  EXPECT_THAT(step.steps, ElementsAre(0, 1));
  EXPECT_THAT(step.counts, ElementsAre(1, 1));
  ASSERT_EQ(step.tightened.size(), 1);
  EXPECT_EQ(step.tightened[0].candidate, 1);
  EXPECT_EQ(step.tightened[0].steps, 1);
}

TEST(Scheduler, TightensNothingWhilePagesAreFree) {
  const Planned step = plan({8, 8}, {tightenable(1, {1}), tightenable(2, {1})}, budget(2));
  EXPECT_THAT(step.tightened, IsEmpty());
}

TEST(Scheduler, TightensTheSequenceWithTheFewestStepsAndOfTheseTheLast) {
  const auto steps = [](int64_t free, std::vector<Candidate> candidates) {
    return plan({8, 8}, candidates, budget(free)).steps;
  };
  EXPECT_THAT(steps(2, {tightenable(1, {1}), tightenable(2, {1}), tightenable(3, {1})}),
              ElementsAre(0, 0, 1));
  EXPECT_THAT(steps(2, {tightenable(1, {1}), tightenable(2, {1}), tightenable(3, {1}, 1)}),
              ElementsAre(0, 1, 0));
  EXPECT_THAT(steps(0, {tightenable(1, {1}), tightenable(2, {1}), tightenable(3, {1})}),
              ElementsAre(1, 1, 1));
  EXPECT_THAT(steps(0, {tightenable(1, {0, 0, 2}), tightenable(2, {})}), ElementsAre(3, 0))
      << "steps that free nothing are taken together with one that does";
}

TEST(Scheduler, PreemptsWhenAllFloorsAreReached) {
  const Planned step = plan(
      {8, 8}, {tightenable(1, {}), tightenable(2, {1}), tightenable(3, {}), tightenable(4, {1})},
      budget(0));
  EXPECT_THAT(step.preempted, ElementsAre(3));
  EXPECT_THAT(step.steps, ElementsAre(0, 1, 0, 0)) << "a preempted sequence is not tightened";
  EXPECT_THAT(step.counts, ElementsAre(1, 1, 1, 0));
}

TEST(Scheduler, TightensNoSequenceThatNeedsMorePagesForItThanThereAre) {
  Candidate of_two_tiers = tightenable(2, {1});
  of_two_tiers.tightening.pages_needed = kHeads;
  EXPECT_THAT(plan({8, 8}, {tightenable(1, {}), of_two_tiers}, budget(1)).steps, ElementsAre(0, 1));
  const Planned step = plan({8, 8}, {tightenable(1, {}), of_two_tiers}, budget(0));
  EXPECT_THAT(step.tightened, IsEmpty());
  EXPECT_THAT(step.preempted, ElementsAre(1));
}

TEST(Scheduler, TightensThoseThatABetterPriorityWouldPreempt) {
  const auto urgent = waiting(kPriorityHeadStart * -1, 128, -1);
  const auto with = [&](std::vector<int64_t> rows_freed) {
    Candidate victim = tightenable(1, std::move(rows_freed));
    victim.tokens = 500;
    victim.stored = 499;
    return plan({200, 8}, {urgent, victim}, budget(1));
  };
  const Planned tightened = with({1, 1});
  EXPECT_THAT(tightened.preempted, IsEmpty());
  EXPECT_THAT(tightened.admitted, ElementsAre(0));
  EXPECT_THAT(tightened.steps, ElementsAre(0, 2));
  const Planned preempted = with({1});
  EXPECT_THAT(preempted.preempted, ElementsAre(1)) << "the floor does not suffice";
  EXPECT_THAT(preempted.tightened, IsEmpty());
  EXPECT_THAT(preempted.admitted, ElementsAre(0));
}

}  // namespace
}  // namespace tessera
