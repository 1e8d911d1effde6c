#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "tests/engine/candidates.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Scheduler, PlansNothingWithoutCandidates) {
  EXPECT_TRUE(plan({8, 8}, {}, budget(100)).empty());
}

TEST(Scheduler, RunsEveryDecodeBesideALongPrefill) {
  const Planned step =
      plan({10, 4}, {running(1, 1000, 32), decoding(2, 40), decoding(3, 50)}, budget(100));
  ASSERT_EQ(step.runs.size(), 3);
  EXPECT_EQ(step.runs[0].candidate, 1);
  EXPECT_EQ(step.runs[1].candidate, 2);
  EXPECT_TRUE(step.runs[0].samples && step.runs[1].samples);
  EXPECT_EQ(step.runs[2].candidate, 0);
  EXPECT_EQ(step.runs[2].count, 8);  // the rest of 10 after the decodes
  EXPECT_FALSE(step.runs[2].samples);
}

TEST(Scheduler, FillsTheStepWithChunksInOrderOfRank) {
  const Planned step =
      plan({20, 8}, {running(1, 12, 0), waiting(2, 5), waiting(3, 90), waiting(4, 3)}, budget(100));
  EXPECT_THAT(step.counts, ElementsAre(12, 5, 3, 0));
  EXPECT_THAT(step.admitted, ElementsAre(1, 2));
  EXPECT_TRUE(step.runs[0].samples);
  EXPECT_TRUE(step.runs[1].samples);
  EXPECT_FALSE(step.runs[2].samples);
}

TEST(Scheduler, AdmitsNoMoreThanThereAreSlots) {
  const Planned step = plan({20, 2}, {decoding(1, 9), waiting(2, 4), waiting(3, 4)}, budget(100));
  EXPECT_THAT(step.admitted, ElementsAre(1));
}

TEST(Scheduler, RanksByPriorityThenArrival) {
  EXPECT_LT(order_of(0, 1), order_of(0, 2));
  EXPECT_LT(order_of(-1, 900), order_of(0, 1));
  EXPECT_LT(order_of(0, 900), order_of(1, 1));
}

TEST(Scheduler, LetsOnlySoManyLaterArrivalsOvertakeAWorsePriority) {
  EXPECT_LT(order_of(0, kPriorityHeadStart), order_of(1, 1));
  EXPECT_LT(order_of(1, 1), order_of(0, kPriorityHeadStart + 2));
}

TEST(Scheduler, AdmitsNoRequestPastTheFirstThatDoesNotFit) {
  const Planned step =
      plan({512, 8}, {decoding(1, 10), waiting(2, 640), waiting(3, 4)}, budget(10));
  EXPECT_THAT(step.admitted, IsEmpty());
  EXPECT_THAT(step.counts, ElementsAre(1, 0, 0));
}

TEST(Scheduler, KeepsAGroupForEveryRunningSequence) {
  const std::vector<Candidate> candidates = {decoding(1, 10), decoding(2, 10), waiting(3, 64)};
  EXPECT_THAT(plan({512, 8}, candidates, budget(2)).admitted, IsEmpty());
  EXPECT_THAT(plan({512, 8}, candidates, budget(3)).admitted, ElementsAre(2));
}

TEST(Scheduler, KeepsThePagesARunningPrefillStillNeeds) {
  // The prefill needs 5 row pages and one more to continue; the waiting request needs 4.
  const std::vector<Candidate> candidates = {running(1, 320, 0), waiting(2, 256)};
  EXPECT_THAT(plan({64, 8}, candidates, budget(10)).admitted, IsEmpty()) << "no tokens left";
  EXPECT_THAT(plan({360, 8}, candidates, budget(9)).admitted, IsEmpty());
  EXPECT_THAT(plan({360, 8}, candidates, budget(10)).admitted, ElementsAre(1));
}

TEST(Scheduler, TakesPagesFromTheWorstRankedForADecode) {
  const Planned step =
      plan({8, 8}, {decoding(1, 64), decoding(2, 10), decoding(3, 100)}, budget(0));
  EXPECT_THAT(step.preempted, ElementsAre(2));
  EXPECT_THAT(step.counts, ElementsAre(1, 1, 0));
  EXPECT_THAT(step.admitted, IsEmpty()) << "a step does not admit the sequence that it preempts";
}

TEST(Scheduler, PreemptsTheWorstPriorityBeforeTheLatestArrival) {
  const Planned step = plan(
      {8, 8},
      {decoding(order_of(0, 1), 64), decoding(order_of(0, 3), 10), decoding(order_of(1, 2), 99, 1)},
      budget(0));
  EXPECT_THAT(step.preempted, ElementsAre(2));
}

TEST(Scheduler, LetsAPrefillTakePagesFromADecodeBehindItOnly) {
  const Planned taken = plan({200, 8}, {running(1, 300, 127), decoding(2, 150)}, budget(0));
  EXPECT_THAT(taken.preempted, ElementsAre(1));
  EXPECT_THAT(taken.counts, ElementsAre(128, 0)) << "as far as the two pages of each head go";
  const Planned kept = plan({200, 8}, {decoding(1, 20), running(2, 300, 127)}, budget(0));
  EXPECT_THAT(kept.preempted, IsEmpty());
  EXPECT_THAT(kept.counts, ElementsAre(1, 0)) << "it keeps its pages and sits the step out";
}

TEST(Scheduler, PreemptsNothingIfNoPageIsNeeded) {
  const Planned step = plan({8, 8}, {decoding(1, 10), decoding(2, 10)}, budget(0));
  EXPECT_THAT(step.preempted, IsEmpty());
  EXPECT_THAT(step.counts, ElementsAre(1, 1));
}

TEST(Scheduler, FillsTheOpenGroupWithoutAPage) {
  const Planned step = plan({200, 8}, {running(1, 300, 100), decoding(2, 150)}, budget(0));
  EXPECT_THAT(step.preempted, IsEmpty());
  EXPECT_THAT(step.counts, ElementsAre(27, 1));
  EXPECT_THAT(plan({200, 8}, {waiting(1, 63), waiting(2, 1)}, budget(1)).counts,
              ElementsAre(63, 1));
}

TEST(Scheduler, PreemptsAWorsePriorityForAWaitingRequest) {
  const std::vector<Candidate> candidates = {waiting(order_of(0, 9), 200),
                                             decoding(order_of(1, 1), 100, 1),
                                             decoding(order_of(1, 2), 100, 1)};
  const Planned for_pages = plan({64, 8}, candidates, budget(3));
  EXPECT_THAT(for_pages.preempted, ElementsAre(2));
  EXPECT_THAT(for_pages.admitted, ElementsAre(0));
  const Planned for_a_slot = plan({64, 2}, candidates, budget(100));
  EXPECT_THAT(for_a_slot.preempted, ElementsAre(2));
  EXPECT_THAT(for_a_slot.admitted, ElementsAre(0));
  const Planned for_a_token = plan({2, 2}, candidates, budget(100));
  EXPECT_THAT(for_a_token.preempted, ElementsAre(2));
  EXPECT_THAT(for_a_token.counts, ElementsAre(1, 1, 0));
}

TEST(Scheduler, PreemptsNothingForAWaitingRequestOfTheSamePriority) {
  const Planned step = plan({64, 1}, {waiting(1, 30), decoding(2, 40)}, budget(100));
  EXPECT_THAT(step.preempted, IsEmpty());
  EXPECT_THAT(step.admitted, IsEmpty());
}

TEST(Scheduler, PreemptsOnlyIfThatSuffices) {
  // Even with the lower-priority one preempted, the waiting request would not fit.
  const Planned step = plan({64, 8},
                            {decoding(order_of(0, 1), 640), waiting(order_of(0, 9), 640),
                             decoding(order_of(1, 2), 99, 1)},
                            budget(2));
  EXPECT_THAT(step.preempted, IsEmpty());
  EXPECT_THAT(step.admitted, IsEmpty());
}

// ---- samples of one request

Candidate sample(Candidate candidate, int32_t shareable) {
  candidate.request = candidate.turn.order;
  candidate.shareable = shareable;
  return candidate;
}

Candidate of_tenant(Candidate candidate, int32_t tenant, int64_t clock, int32_t share = 1) {
  candidate.turn.tenant = tenant;
  candidate.turn.clock = clock;
  candidate.turn.share = share;
  return candidate;
}

TEST(SchedulerOfTenants, GiveOneThatIsAheadItsShareOfAStepForPrompts) {
  const SchedulerLimits limits{.max_step_tokens = 64, .max_sequences = 8, .tenant_lead = 50};
  const auto beside = [&](int64_t clock, int32_t share, int32_t waiting_ones) {
    std::vector<Candidate> all = {of_tenant(decoding(1, 40), 1, 0),
                                  of_tenant(running(2, 1000, 0), 2, clock, share),
                                  of_tenant(decoding(3, 40), 2, clock, share)};
    for (int32_t i = 0; i < waiting_ones; ++i) {
      all.push_back(of_tenant(waiting(4 + i, 300), 2, clock, share));
    }
    return plan(limits, all, budget(1000)).counts;
  };
  EXPECT_THAT(beside(100, 1, 0), ElementsAre(1, 32, 1));
  EXPECT_THAT(beside(100, 1, 2), ElementsAre(1, 32, 1, 0, 0)) << "more requests, no more tokens";
  EXPECT_THAT(beside(100, 3, 0), ElementsAre(1, 48, 1));
  EXPECT_THAT(beside(49, 1, 0), ElementsAre(1, 62, 1)) << "not ahead by the lead";
}

TEST(SchedulerOfTenants, GiveTheRestOfAStepToThePromptsOfTheOneBehind) {
  const SchedulerLimits limits{.max_step_tokens = 64, .max_sequences = 8, .tenant_lead = 50};
  const Planned step =
      plan(limits,
           {of_tenant(running(1, 1000, 0), 2, 100), of_tenant(decoding(2, 9), 1, 0),
            of_tenant(waiting(3, 500), 2, 100), of_tenant(waiting(4, 500), 1, 0)},
           budget(1000));
  EXPECT_THAT(step.counts, ElementsAre(32, 1, 0, 31));
}

TEST(SchedulerOfTenants, GiveOneThatRunsAloneTheWholeStep) {
  const SchedulerLimits limits{.max_step_tokens = 64, .max_sequences = 8, .tenant_lead = 50};
  const Planned step =
      plan(limits, {of_tenant(running(1, 1000, 0), 2, 100), of_tenant(decoding(2, 9), 2, 100)},
           budget(1000));
  EXPECT_THAT(step.counts, ElementsAre(63, 1));
}

TEST(SchedulerOfSamples, LetsTheFirstStoreWhatAllShareAndTheOthersWait) {
  const Planned step = plan({100, 8},
                            {sample(waiting(1, 40), 39), sample(waiting(1, 40), 39),
                             sample(waiting(1, 40), 39), waiting(2, 10)},
                            budget(100));
  EXPECT_THAT(step.counts, ElementsAre(39, 0, 0, 0)) << "and no request overtakes them";
  EXPECT_THAT(step.admitted, ElementsAre(0));
  EXPECT_THAT(step.forks, IsEmpty());
  EXPECT_FALSE(step.runs[0].samples);
}

TEST(SchedulerOfSamples, ForksTheOthersWhenItIsStored) {
  const Planned step = plan({100, 8},
                            {sample(running(1, 40, 39), 39), sample(waiting(1, 40), 39),
                             sample(waiting(1, 44), 39), waiting(2, 10)},
                            budget(100));
  EXPECT_THAT(step.counts, ElementsAre(1, 1, 5, 10)) << "one was preempted and has more to store";
  ASSERT_EQ(step.forks.size(), 2);
  EXPECT_EQ(step.forks[0].candidate, 1);
  EXPECT_EQ(step.forks[0].source, 0);
  EXPECT_EQ(step.forks[1].candidate, 2);
  EXPECT_EQ(step.forks[1].source, 0);
  EXPECT_TRUE(step.runs[0].samples && step.runs[1].samples && step.runs[2].samples);
}

TEST(SchedulerOfSamples, NeedsPagesForWhatIsNotSharedOnly) {
  // Two pages of the 192 tokens are shared. Each sample closes one more, and one is kept for the
  // running sample.
  const std::vector<Candidate> candidates = {sample(running(1, 192, 191), 191),
                                             sample(waiting(1, 192), 191)};
  EXPECT_THAT(plan({100, 8}, candidates, budget(2)).admitted, IsEmpty());
  const Planned step = plan({100, 8}, candidates, budget(3));
  EXPECT_THAT(step.admitted, ElementsAre(1));
  EXPECT_EQ(step.forks.size(), 1);
}

TEST(SchedulerOfSamples, CountsSharedPagesWithTheFirst) {
  // Preempting the last sample frees one page of each head, not three: the second goes too.
  const Planned step = plan({100, 8},
                            {running(0, 300, 127), sample(decoding(1, 200), 150),
                             sample(decoding(1, 200), 150), sample(decoding(1, 200), 150)},
                            budget(0));
  EXPECT_THAT(step.preempted, ElementsAre(3));
  EXPECT_THAT(step.counts, ElementsAre(64, 1, 1, 0));
  const Planned all =
      plan({300, 1 + 3},
           {waiting(order_of(0, 9), 256), sample(decoding(order_of(1, 1), 200, 1), 150),
            sample(decoding(order_of(1, 1), 200, 1), 150)},
           budget(0));
  EXPECT_THAT(all.preempted, ElementsAre(2, 1)) << "1 + 3 pages of each head are its four";
  EXPECT_THAT(all.counts, ElementsAre(256, 0, 0));
}

TEST(SchedulerOfSamples, ForksWholeGroupsWhereTheOpenOneHasClosed) {
  const Planned step = plan(
      {100, 8}, {sample(running(1, 200, 199), 150), sample(waiting(1, 151), 150)}, budget(100));
  ASSERT_EQ(step.forks.size(), 1);
  EXPECT_EQ(step.forks[0].tokens, 128);
  EXPECT_THAT(step.counts, ElementsAre(1, 22)) << "to the end of the shared prefix";
  const Planned open = plan(
      {100, 8}, {sample(running(1, 170, 169), 150), sample(waiting(1, 151), 150)}, budget(100));
  EXPECT_EQ(open.forks[0].tokens, 150);
}

TEST(SchedulerOfSamples, LetsTheNextOneStoreItAnewWhenTheFirstIsGone) {
  const Planned step =
      plan({100, 8}, {sample(waiting(1, 45), 39), sample(waiting(1, 40), 39)}, budget(100));
  EXPECT_THAT(step.counts, ElementsAre(39, 0));
  EXPECT_THAT(step.forks, IsEmpty());
}

TEST(Scheduler, ReusesTheMemoryOfItsLastPlan) {
  Scheduler scheduler({64, 8});
  const std::vector<Candidate> candidates = {decoding(1, 20), waiting(2, 30)};
  const StepPlan::Run* memory = scheduler.plan(candidates, budget(100)).runs.data();
  const StepPlan& second = scheduler.plan(candidates, budget(100));
  EXPECT_EQ(second.runs.data(), memory);
  EXPECT_EQ(second.runs.size(), 2);
}

TEST(Scheduler, PlansTheSameAfterAnyOtherPlan) {
  Scheduler scheduler({64, 8});
  const std::vector<Candidate> candidates = {decoding(1, 20), waiting(2, 30)};
  const StepPlan first = scheduler.plan(candidates, budget(100));
  scheduler.plan(std::vector{decoding(1, 64), running(2, 300, 100), waiting(3, 9)}, budget(0));
  const StepPlan& again = scheduler.plan(candidates, budget(100));
  EXPECT_EQ(again.admitted, first.admitted);
  EXPECT_EQ(again.runs.size(), first.runs.size());
  EXPECT_THAT(again.preempted, IsEmpty());
  EXPECT_FALSE(again.lacks_pages);
}

// ---- properties of any plan

struct World {
  SchedulerLimits limits;
  std::vector<Candidate> candidates;
  KvBudget free;
  int64_t pages_total = 0;
};

// Lets a candidate give some of its pages in steps, not all of which free one.
template <class Pick>
void add_tightening(Candidate& candidate, Pick&& pick) {
  int64_t freed = 0;
  for (int64_t& after : candidate.tightening.freed) {
    freed = std::min(candidate.pages, freed + kHeads * pick(0, 1));
    after = freed;
  }
  candidate.tightening.steps = pick(0, 3);
  candidate.tightening.pages_needed = kHeads * pick(0, 1);
}

World random_world(std::mt19937_64& random) {
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  World world;
  const int32_t context = pick(1, 800);
  world.limits.max_sequences = pick(1, 10);
  world.limits.max_step_tokens = world.limits.max_sequences + pick(0, 100);
  int64_t held = 0;
  int32_t slots = world.limits.max_sequences;
  for (int32_t i = pick(1, 20); i > 0; --i) {
    const int32_t priority = pick(0, 2);
    const int64_t order = order_of(priority, i);
    const int32_t samples = pick(0, 3) == 0 ? pick(2, 5) : 1;
    const int32_t shareable = samples > 1 ? pick(0, context - 1) : 0;
    bool may_run = true;
    for (int32_t s = 0; s < samples; ++s) {
      const int32_t tokens = pick(shareable + 1, context);
      if (slots > 0 && may_run && pick(0, 1) == 1) {
        --slots;
        const int32_t min = s > 0 ? shareable / kKvGroup * kKvGroup : 0;  // of a fork
        const int32_t stored = pick(0, 2) > 0 ? tokens - 1 : pick(min, tokens - 1);
        world.candidates.push_back(running(order, tokens, stored, priority));
        if (samples == 1 && pick(0, 2) == 0) {
          add_tightening(world.candidates.back(), pick);
        }
        held += world.candidates.back().pages;
        held -= s > 0 ? kDemand.full_pages(shareable) : 0;
        may_run = stored >= shareable;
      } else {
        world.candidates.push_back(waiting(order, tokens, priority));
        may_run = false;
      }
      world.candidates.back().request = i;
      world.candidates.back().shareable = shareable;
    }
  }
  std::stable_sort(
      world.candidates.begin(), world.candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.turn.order < b.turn.order; });
  const int64_t context_pages = budget(0).pages_for(context);
  world.pages_total = std::max(held, context_pages) + kHeads * pick(0, 3) * pick(0, 20);
  world.free = budget(0);
  world.free.pages_free = world.pages_total - held;
  return world;
}

bool follows_sibling(const World& world, size_t i) {
  return i > 0 && world.candidates[i].shareable > 0 &&
         world.candidates[i - 1].request == world.candidates[i].request;
}

// Returns: the fork that candidate `i` begins in this step, if any.
std::optional<StepPlan::Fork> fork_of(const Planned& step, size_t i) {
  for (const StepPlan::Fork& fork : step.forks) {
    if (std::cmp_equal(fork.candidate, i)) {
      return fork;
    }
  }
  return std::nullopt;
}

void check_resources(const World& world, const Planned& step) {
  int64_t pages = 0;
  int64_t slots = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < world.candidates.size(); ++i) {
    const Candidate& candidate = world.candidates[i];
    const auto fork = fork_of(step, i);
    const int32_t stored = fork.has_value() ? fork->tokens : candidate.stored;
    ASSERT_LE(step.counts[i], candidate.tokens - stored);
    const bool admitted = std::count(step.admitted.begin(), step.admitted.end(), i) == 1;
    const bool preempted = std::count(step.preempted.begin(), step.preempted.end(), i) == 1;
    ASSERT_TRUE(!preempted || (candidate.running && step.counts[i] == 0));
    ASSERT_TRUE(!admitted || (!candidate.running && step.counts[i] > 0));
    ASSERT_TRUE(step.counts[i] == 0 || admitted || candidate.running);
    const bool has_slot = (candidate.running && !preempted) || admitted;
    ASSERT_TRUE(!fork.has_value() || admitted);
    if (fork.has_value()) {
      const auto source = static_cast<size_t>(fork->source);
      ASSERT_TRUE(world.candidates[source].running && step.evicted[source] == 0);
      ASSERT_EQ(world.candidates[source].request, candidate.request);
      ASSERT_GE(world.candidates[source].stored, candidate.shareable);
      ASSERT_LE(fork->tokens, candidate.shareable);
      ASSERT_TRUE(fork->tokens % kKvGroup == 0 ||
                  fork->tokens / kKvGroup == world.candidates[source].stored / kKvGroup);
    }
    slots += has_slot ? 1 : 0;
    if (has_slot) {
      pages += world.free.pages_for(stored + step.counts[i]);
      pages -= follows_sibling(world, i) ? kDemand.full_pages(candidate.shareable) : 0;
    }
    if (step.steps[i] > 0) {
      ASSERT_TRUE(candidate.running && !preempted);
      ASSERT_LE(candidate.tightening.pages_needed, world.free.pages_free);
      pages -= candidate.tightening.freed[static_cast<size_t>(step.steps[i] - 1)];
    }
    tokens += step.counts[i];
  }
  ASSERT_LE(tokens, world.limits.max_step_tokens);
  ASSERT_LE(slots, world.limits.max_sequences);
  ASSERT_LE(pages, world.pages_total);
}

void check_order(const World& world, const Planned& step) {
  const auto keeps = [&](size_t i) { return world.candidates[i].running && step.evicted[i] == 0; };
  bool best_running_seen = false;
  for (size_t i = 0; i < world.candidates.size(); ++i) {
    const Candidate& candidate = world.candidates[i];
    if (candidate.running && !best_running_seen && step.evicted[i] == 0) {
      best_running_seen = true;
      ASSERT_GT(step.counts[i], 0) << "the best-ranked that keeps its slot progresses";
    }
    if (step.evicted[i] != 0) {
      for (size_t j = i + 1; j < world.candidates.size(); ++j) {
        ASSERT_FALSE(keeps(j)) << "the victim is the worst-ranked";
      }
    }
    if (candidate.running && candidate.pending() == 1 && step.evicted[i] == 0 &&
        step.counts[i] == 0) {
      for (size_t j = i + 1; j < world.candidates.size(); ++j) {
        ASSERT_FALSE(keeps(j)) << "a decode waits only if no sequence ranks behind it";
      }
    }
  }
  for (const int32_t admitted : step.admitted) {
    for (int32_t i = 0; i < admitted; ++i) {
      const auto ahead = static_cast<size_t>(i);
      ASSERT_TRUE(step.counts[ahead] > 0 || keeps(ahead)) << "no sequence is overtaken";
    }
  }
}

TEST(Scheduler, KeepsItsPromisesInAnySituation) {
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const World world = random_world(random);
    const Planned step = plan(world.limits, world.candidates, world.free);
    ASSERT_FALSE(step.empty());
    check_resources(world, step);
    check_order(world, step);
    if (testing::Test::HasFailure()) {
      return;
    }
  }
}

TEST(Scheduler, TellsWhatAStepLeavesBesideItsPromises) {
  const Planned step = plan({100, 8}, {decoding(1, 10), waiting(2, 64)}, budget(20));
  EXPECT_FALSE(step.lacks_pages);
  EXPECT_EQ(step.spare.tokens, 100 - 1 - 64);
  EXPECT_EQ(step.spare.slots, 8 - 2);
  // The waiting one takes a page of each row, and both are promised another.
  EXPECT_EQ(step.spare.pages, (20 - 3) * kHeads);
}

TEST(Scheduler, TellsThatPagesLackIfTheyLimitARunOrAnAdmission) {
  const std::vector<Candidate> candidates = {running(1, 320, 0)};
  EXPECT_FALSE(plan({512, 8}, candidates, budget(5)).lacks_pages);
  EXPECT_TRUE(plan({512, 8}, candidates, budget(4)).lacks_pages);
  const std::vector<Candidate> more = {decoding(1, 10), waiting(2, 256)};
  EXPECT_FALSE(plan({512, 8}, more, budget(5)).lacks_pages);
  EXPECT_TRUE(plan({512, 8}, more, budget(4)).lacks_pages);
  EXPECT_TRUE(plan({512, 8}, {decoding(1, 64), decoding(2, 64)}, budget(1)).lacks_pages);
  EXPECT_FALSE(plan({512, 1}, more, budget(5)).lacks_pages) << "a slot is missing, no page";
}

// The engine then gives up the replay and plans again.
TEST(Scheduler, MayRunNothingWhileAReplayHoldsThePages) {
  KvBudget held = budget(3);
  held.replay_holds = true;
  const Planned step = plan({512, 8}, {waiting(1, 320)}, held);
  EXPECT_TRUE(step.empty());
  EXPECT_TRUE(step.lacks_pages);
}

}  // namespace
}  // namespace tessera
