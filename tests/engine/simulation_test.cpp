// Random traffic through the real scheduler, KV accounting, sampler and engine over the fake model.
// TESSERA_SIMULATION_STEPS and TESSERA_SIMULATION_SEED set its length and its seed.

#include "tests/engine/simulation.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace tessera {
namespace {

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::stoull(value) : otherwise;
}

// A failed check must print the seed of the traffic.
volatile uint64_t running_seed = 0;
void print_running_seed(int /*signal*/) {
  std::fprintf(stderr, "TESSERA_SIMULATION_SEED=%llu\n",
               static_cast<unsigned long long>(running_seed));
}

TEST(EngineSimulation, KeepsEveryInvariantAfterEveryStep) {
  const int64_t wanted = static_cast<int64_t>(setting("TESSERA_SIMULATION_STEPS", 100'000));
  uint64_t seed = setting("TESSERA_SIMULATION_SEED", 1);
  std::signal(SIGABRT, print_running_seed);
  std::map<FinishReason, int64_t> finished;
  int64_t preemptions = 0;
  int64_t cached = 0;
  int64_t lossy_cached = 0;
  int64_t section_tokens = 0;
  int64_t handed_over = 0;
  int64_t evicted = 0;
  int64_t compressed = 0;
  int64_t replays_alone = 0;
  int64_t overdue = 0;
  int64_t shared_pages = 0;
  int64_t drafted[2] = {};  // tokens, without and with a draft model
  int64_t accepted[2] = {};
  for (int64_t steps = 0; steps < wanted; ++seed) {
    SCOPED_TRACE("TESSERA_SIMULATION_SEED=" + std::to_string(seed));
    running_seed = seed;
    Simulation simulation(seed);
    steps += simulation.run(1000);
    preemptions += simulation.preemptions();
    cached += simulation.cached_tokens();
    lossy_cached += simulation.lossy_cached_tokens();
    section_tokens += simulation.section_tokens();
    handed_over += simulation.cache().handed_over_blocks;
    evicted += simulation.cache().evicted_blocks;
    compressed += simulation.cache().compressed_blocks;
    replays_alone += simulation.replays_alone();
    overdue += simulation.overdue_requests();
    shared_pages += simulation.shared_pages();
    drafted[seed % 2 == 0] += simulation.stats().drafted_tokens;
    accepted[seed % 2 == 0] += simulation.stats().accepted_tokens;
    for (const FinishReason reason : {FinishReason::stop, FinishReason::length,
                                      FinishReason::cancelled, FinishReason::failed}) {
      finished[reason] += simulation.finished(reason);
    }
    ASSERT_FALSE(HasFailure());
  }
  std::printf(
      "%lld tokens from the prefix cache, %lld of them for lossy policies; %lld blocks evicted, "
      "%lld handed over, %lld compressed in the background\n",
      static_cast<long long>(cached), static_cast<long long>(lossy_cached),
      static_cast<long long>(evicted), static_cast<long long>(handed_over),
      static_cast<long long>(compressed));
  EXPECT_GT(cached, 0);
  EXPECT_GT(evicted, 0);
  EXPECT_GT(lossy_cached, 0);
  EXPECT_GT(section_tokens, 0);
  EXPECT_GT(handed_over, 0);
  EXPECT_GT(compressed, 0);
  EXPECT_GT(replays_alone, 0);
  std::printf(
      "%lld preemptions; stop %lld, length %lld, cancelled %lld, of them %lld overdue, "
      "failed %lld\n",
      static_cast<long long>(preemptions), static_cast<long long>(finished[FinishReason::stop]),
      static_cast<long long>(finished[FinishReason::length]),
      static_cast<long long>(finished[FinishReason::cancelled]), static_cast<long long>(overdue),
      static_cast<long long>(finished[FinishReason::failed]));
  EXPECT_GT(preemptions, 0) << "the traffic exhausts the pages";
  EXPECT_GT(overdue, 0) << "deadlines pass";
  EXPECT_GT(shared_pages, 0) << "samples share pages";
  std::printf("drafted from texts %lld, accepted %lld; beside a draft model %lld, accepted %lld\n",
              static_cast<long long>(drafted[0]), static_cast<long long>(accepted[0]),
              static_cast<long long>(drafted[1]), static_cast<long long>(accepted[1]));
  EXPECT_GT(accepted[0], 0);
  EXPECT_GT(drafted[0], accepted[0]);
  EXPECT_GT(drafted[1], accepted[1]);
  EXPECT_GT(accepted[1], accepted[0]) << "the draft model is right in many places";
  for (const auto& [reason, count] : finished) {
    EXPECT_GT(count, 0) << "the traffic ends in every way: " << static_cast<int>(reason);
  }
}

}  // namespace
}  // namespace tessera
