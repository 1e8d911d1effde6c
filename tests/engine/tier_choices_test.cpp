// When prompts wait for the stores: not while a disk hangs, and not for what is computed sooner.

#include <gtest/gtest.h>

#include "engine/tier/read_guard.h"
#include "engine/tier/restore_rates.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Time = ReadGuard::Clock::time_point;

Time at(int64_t ms) {
  return Time() + milliseconds(ms);
}

TEST(ReadGuard, SuspendsTheStoresAfterTimeoutsInARow) {
  ReadGuard guard(milliseconds(1000));
  guard.note_timeout(at(0));
  guard.note_timeout(at(1));
  guard.note_block(milliseconds(1));
  guard.note_timeout(at(2));
  guard.note_timeout(at(3));
  EXPECT_FALSE(guard.suspended()) << "a block came in time between them";
  guard.note_block(milliseconds(1200));
  guard.note_timeout(at(4));
  EXPECT_TRUE(guard.suspended()) << "a block that comes too late tells nothing good";
  EXPECT_EQ(guard.suspensions(), 1);
  EXPECT_EQ(guard.next_trial(), at(1004));
}

TEST(ReadGuard, TriesLessOftenWhileTheDiskDoesNotAnswer) {
  ReadGuard guard(milliseconds(1000));
  for (int32_t i = 0; i < ReadGuard::kTimeouts; ++i) {
    guard.note_timeout(at(0));
  }
  guard.note_trial(false, at(1000));
  EXPECT_TRUE(guard.suspended());
  EXPECT_EQ(guard.next_trial(), at(3000));
  for (int32_t i = 0; i < 20; ++i) {
    guard.note_trial(false, at(0));
  }
  EXPECT_EQ(guard.next_trial(), at(60'000));
  guard.note_trial(true, at(0));
  EXPECT_FALSE(guard.suspended());
}

TEST(ReadGuard, SuspendsAgainAtTheFirstTimeoutBehindATrial) {
  ReadGuard guard(milliseconds(1000));
  for (int32_t i = 0; i < ReadGuard::kTimeouts; ++i) {
    guard.note_timeout(at(0));
  }
  guard.note_trial(true, at(1000));
  guard.note_timeout(at(1100));
  EXPECT_TRUE(guard.suspended());
  EXPECT_EQ(guard.suspensions(), 2);
  EXPECT_EQ(guard.next_trial(), at(3100)) << "the pause has doubled";
  guard.note_trial(true, at(3200));
  guard.note_block(milliseconds(1));
  guard.note_timeout(at(3300));
  EXPECT_FALSE(guard.suspended()) << "the disk has served a prompt since";
}

TEST(RestoreRates, ReadWhatTakesLessTimeThanToComputeIt) {
  RestoreRates rates(std::nullopt);
  EXPECT_TRUE(rates.reads(0, 1, 64)) << "nothing is known of steps";
  for (int32_t i = 0; i < 20; ++i) {
    rates.note_step(512, 0.512);
  }
  EXPECT_NEAR(rates.token_seconds(), 0.001, 1e-9);
  EXPECT_TRUE(rates.reads(0, 0, 64)) << "nothing is known of the store";
  EXPECT_TRUE(rates.reads(0, 0.063, 64));
  EXPECT_FALSE(rates.reads(0, 0.065, 64));
  for (int32_t i = 0; i < 100; ++i) {
    rates.note_step(512, 1.024);
  }
  EXPECT_TRUE(rates.reads(0, 0.065, 64)) << "steps have become slower";
}

TEST(RestoreRates, TryAStoreAgainThatWasTooSlow) {
  RestoreRates rates(std::nullopt);
  for (int32_t i = 0; i < 4; ++i) {
    rates.note_step(64, 0.001);
  }
  int32_t trials = 0;
  for (int32_t i = 0; i < 10 * RestoreRates::kTrials; ++i) {
    trials += rates.reads(0, 1, 64) ? 1 : 0;
  }
  EXPECT_EQ(trials, 10);
}

TEST(RestoreRates, AreNotMisledByAFewDelays) {
  RecentMedian median;
  for (const double value : {50.0, 1.0, 1.0}) {
    median.add(value);
    EXPECT_EQ(median.value(), 0) << "too few values";
  }
  median.add(50);
  for (const double value : {1.0, 50.0, 1.0, 1.0, 1.0}) {
    median.add(value);
  }
  EXPECT_EQ(median.value(), 1);
}

TEST(RestoreRates, HaveARateForEachStore) {
  RestoreRates rates(KvTierRates{.token_seconds = 0.001, .block_seconds = {0.001, 1}});
  EXPECT_TRUE(rates.reads(0, 0, 64));
  EXPECT_FALSE(rates.reads(1, 0, 64));
}

}  // namespace
}  // namespace tessera
