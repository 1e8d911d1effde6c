// An engine above stores: what it keeps apart, what it computes instead of reading, how it ends.

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>

#include "engine/tier/read_guard.h"
#include "tests/engine/stores_fixture.h"

namespace tessera {
namespace {

TEST_F(StoresTest, KeepSaltsApart) {
  auto first = engine(options(kKvPresetF16, disk()));
  const StoredAnswer whole = ask(*first, prompt_number(1), "tenant a");
  first.reset();
  const auto second = engine(options(kKvPresetF16, both()));
  EXPECT_EQ(ask(*second, prompt_number(1), "tenant b").cached, 0);
  EXPECT_EQ(ask(*second, prompt_number(1)).cached, 0);
  const StoredAnswer hit = ask(*second, prompt_number(1), "tenant a");
  EXPECT_GT(hit.cached, 0);
  EXPECT_EQ(hit.numbers, whole.numbers);
}

TEST_F(StoresTest, HaveNothingForAnotherCheckpoint) {
  KvTierOptions of_one = disk();
  of_one.checkpoint = "one";
  auto first = engine(options(kKvPresetF16, of_one));
  ask(*first, prompt_number(1));
  first.reset();
  of_one.checkpoint = "another";
  auto second = engine(options(kKvPresetF16, of_one));
  EXPECT_EQ(ask(*second, prompt_number(1)).cached, 0);
  second.reset();
  of_one.checkpoint = "one";
  const auto third = engine(options(kKvPresetF16, of_one));
  EXPECT_GT(ask(*third, prompt_number(1)).cached, 0);
}

TEST_F(StoresTest, AreEmptiedByAFlush) {
  const auto flushed = engine(options(kKvPresetF16, both()));
  for (uint32_t i = 0; i < 8; ++i) {
    ask(*flushed, prompt_number(i));
  }
  flushed->flush_cache();
  while (flushed->step()) {
  }
  EXPECT_EQ(ask(*flushed, prompt_number(0)).cached, 0);
  EXPECT_EQ(ask(*flushed, prompt_number(7)).cached, 0);
}

TEST_F(StoresTest, AnswerLikeAMissFromDamagedFiles) {
  std::vector<StoredAnswer> expected;
  {
    const auto engine = this->engine(options(kKvPresetF16, disk()));
    for (uint32_t i = 0; i < 8; ++i) {
      expected.push_back(ask(*engine, prompt_number(i)));
    }
  }
  std::mt19937 random(9);
  for (const auto& file : std::filesystem::directory_iterator(directory_ / "kv")) {
    if (file.path().extension() == ".kv") {
      std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      for (int32_t flip = 0; flip < 12; ++flip) {
        bytes.seekp(static_cast<std::streamoff>(64 + random() % (file.file_size() - 64)));
        bytes.put(static_cast<char>(random()));
      }
    }
  }
  const auto engine = this->engine(options(kKvPresetF16, disk()));
  for (uint32_t i = 0; i < 8; ++i) {
    const StoredAnswer answer = ask(*engine, prompt_number(i));
    EXPECT_EQ(answer.tokens, expected[i].tokens);
    EXPECT_EQ(answer.numbers, expected[i].numbers);
  }
  EXPECT_GT(engine->stats().tiers.disk.damaged_blocks, 0);
  EXPECT_GT(engine->stats().tiers.restored_blocks, 0);
}

TEST_F(StoresTest, KeepDemotedBlocksInTheirFormat) {
  EngineOptions demoting = options(*find_kv_preset("k8v4"), host());
  demoting.kv_ladder = std::vector<KvFormat>{*parse_format("k4v2")};
  const auto engine = this->engine(demoting);
  for (uint32_t i = 0; i < 20; ++i) {
    ask(*engine, prompt_number(i));
  }
  ASSERT_GT(engine->stats().cache.demoted_blocks, 0);
  ASSERT_GT(engine->stats().cache.evicted_blocks, 0);
  const StoredAnswer hit = ask(*engine, prompt_number(0));
  EXPECT_GT(hit.cached, 0);
  EXPECT_GT(engine->stats().tiers.restored_blocks, 0);
}

ssize_t read_slowly(int file, void* bytes, size_t count, off_t offset) {
  usleep(count > 4096 ? 1200000 : 0);
  return pread(file, bytes, count, offset);
}

TEST_F(StoresTest, DoNotDelayARequestBehindASlowDisk) {
  {
    const auto engine = this->engine(options(kKvPresetF16, disk()));
    ask(*engine, prompt_number(1));
  }
  KvTierOptions slow = disk();
  const DiskCalls calls{.read = read_slowly};
  slow.calls = &calls;
  const auto engine = this->engine(options(kKvPresetF16, slow));
  const auto begin = std::chrono::steady_clock::now();
  const StoredAnswer answer = ask(*engine, prompt_number(1));
  EXPECT_EQ(answer.cached, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(3000));
  EXPECT_EQ(engine->stats().tiers.slow_reads, 1);
}

std::atomic<bool> disk_hangs = false;

ssize_t read_or_hang(int file, void* bytes, size_t count, off_t offset) {
  while (disk_hangs && count > 4096) {
    usleep(1000);
  }
  return pread(file, bytes, count, offset);
}

// A clock that runs twenty times as fast, so that a second of patience passes soon.
std::chrono::steady_clock::time_point fast_clock() {
  static const auto kBegin = std::chrono::steady_clock::now();
  return kBegin + 20 * (std::chrono::steady_clock::now() - kBegin);
}

TEST_F(StoresTest, AreLeftAloneWhileTheirDiskHangs) {
  {
    const auto engine = this->engine(options(kKvPresetF16, disk()));
    for (uint32_t i = 0; i < 8; ++i) {
      ask(*engine, prompt_number(i));
    }
  }
  std::vector<std::string> log;
  KvTierOptions tiers = disk();
  const DiskCalls calls{.read = read_or_hang};
  tiers.calls = &calls;
  tiers.log = [&](std::string_view text) { log.emplace_back(text); };
  EngineOptions fast = options(kKvPresetF16, tiers);
  fast.clock = fast_clock;
  const auto engine = this->engine(fast);
  disk_hangs = true;
  for (uint32_t i = 0; i < ReadGuard::kTimeouts; ++i) {
    EXPECT_FALSE(engine->stats().tiers.suspended);
    EXPECT_EQ(ask(*engine, prompt_number(i)).cached, 0);
  }
  const KvTierStats stats = engine->stats().tiers;
  EXPECT_TRUE(stats.suspended);
  EXPECT_EQ(stats.suspensions, 1);
  for (uint32_t i = ReadGuard::kTimeouts; i < 7; ++i) {
    EXPECT_EQ(ask(*engine, prompt_number(i)).cached, 0);
  }
  EXPECT_EQ(engine->stats().tiers.slow_reads, stats.slow_reads) << "no further prompt has waited";
  disk_hangs = false;
  while (engine->stats().tiers.suspended) {
    engine->step();
    usleep(1000);
  }
  EXPECT_GT(ask(*engine, prompt_number(7)).cached, 0);
  ASSERT_EQ(log.size(), 2U);
  EXPECT_NE(log[0].find("does not answer"), std::string::npos);
  EXPECT_NE(log[1].find("answers again"), std::string::npos);
}

ssize_t write_slowly(int file, const void* bytes, size_t count, off_t offset) {
  usleep(count > 4096 ? 50000 : 0);
  return pwrite(file, bytes, count, offset);
}

TEST_F(StoresTest, EndInTimeAndTellWhatTheySkip) {
  std::string log;
  KvTierOptions tiers = disk();
  const DiskCalls calls{.write = write_slowly};
  tiers.calls = &calls;
  tiers.save_time = std::chrono::milliseconds(0);  // then it is a second
  tiers.log = [&](std::string_view text) { log = text; };
  auto engine = this->engine(options(kKvPresetF16, tiers));
  for (uint32_t i = 0; i < 12; ++i) {
    ask(*engine, prompt_number(i));
  }
  const auto begin = std::chrono::steady_clock::now();
  engine->stop();
  const KvTierStats stats = engine->stats().tiers;
  engine.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2500));
  EXPECT_GT(stats.unsaved_blocks, 0);
  EXPECT_GT(stats.written_blocks, 0);
  EXPECT_EQ(log, std::to_string(stats.unsaved_blocks) +
                     " blocks were not written in the time that drain-timeout gives");
  const auto next = this->engine(options(kKvPresetF16, disk()));
  EXPECT_GE(next->stats().tiers.disk.blocks, stats.disk.blocks);
  EXPECT_LE(next->stats().tiers.disk.blocks, stats.disk.blocks + 1) << "one was being written";
}

// ---- preemption

class PreemptionTest : public StoresTest {
 protected:
  struct Answers {
    std::vector<StoredAnswer> of_prompts;
    EngineStats stats;
  };
  // Four sequences that grow at once.
  Answers answers(const KvPreset& preset, const KvTierOptions& tiers, bool scarce) {
    EngineOptions options = this->options(preset, tiers);
    const int64_t bytes = engine(this->options(preset))->options().kv_bytes;
    options.kv_bytes = scarce ? bytes / 2 : bytes;
    const auto engine = this->engine(options);
    std::vector<std::shared_ptr<NumbersSink>> sinks;
    for (uint32_t i = 0; i < 4; ++i) {
      std::vector<int32_t> prompt = prompt_number(i);
      prompt.resize(150);
      sinks.push_back(submit(*engine, std::move(prompt), 220));
    }
    while (engine->step()) {
      usleep(engine->stats().tiers.queued_blocks > 0 ? 500 : 0);  // a block on its way is a miss
    }
    Answers made;
    for (const auto& sink : sinks) {
      made.of_prompts.push_back(answer_of(*sink));
    }
    made.stats = engine->stats();
    return made;
  }
  static void expect_same(const Answers& answers, const Answers& expected) {
    for (size_t i = 0; i < expected.of_prompts.size(); ++i) {
      EXPECT_EQ(answers.of_prompts[i].tokens, expected.of_prompts[i].tokens);
      EXPECT_EQ(answers.of_prompts[i].numbers, expected.of_prompts[i].numbers);
    }
  }
};

TEST_F(PreemptionTest, ReadsOrComputesWhatIsFasterToTheSameBits) {
  int64_t with_store = 0;  // tokens that were computed
  int64_t without = 0;
  for (const KvPreset& preset : {kKvPresetF16, *find_kv_preset("k8v4")}) {
    const Answers expected = answers(preset, {}, false);
    ASSERT_EQ(expected.stats.preemptions, 0);
    KvTierOptions tiers = host();
    const Answers read = answers(preset, tiers, true);
    EXPECT_GT(read.stats.preemptions, 0);
    EXPECT_GT(read.stats.tiers.chosen_reads, 0);
    EXPECT_GT(read.stats.tiers.restored_blocks, 0);
    EXPECT_EQ(read.stats.tiers.chosen_computes, 0);
    with_store += read.stats.prompt_tokens;
    without += answers(preset, {}, true).stats.prompt_tokens;
    expect_same(read, expected);

    tiers.rates = KvTierRates{.token_seconds = 1, .block_seconds = {65, 65}};
    const Answers computed = answers(preset, tiers, true);
    EXPECT_GT(computed.stats.preemptions, 0);
    EXPECT_GT(computed.stats.tiers.chosen_computes, 0);
    EXPECT_EQ(computed.stats.tiers.restored_blocks, 0);
    expect_same(computed, expected);

    tiers.rates.reset();
    const Answers measured = answers(preset, tiers, true);
    EXPECT_GT(measured.stats.tiers.token_seconds, 0);
    expect_same(measured, expected);
  }
  EXPECT_LT(with_store, without) << "what was read is not computed";
}

// ---- killed processes

constexpr uint32_t kAskedPrompts = 10;

// TESSERA_STORE_KILLS sets the number of kills.
TEST_F(StoresTest, HaveTheirBitsAfterAnEngineThatWasKilled) {
  const char* const wanted = std::getenv("TESSERA_STORE_KILLS");
  const auto kills = static_cast<uint32_t>(wanted != nullptr ? std::atoi(wanted) : 5);
  const EngineOptions served = options(*find_kv_preset("k8v4"), both());
  std::vector<StoredAnswer> expected;
  {
    const auto engine = this->engine(options(*find_kv_preset("k8v4")));
    for (uint32_t i = 0; i < kAskedPrompts; ++i) {
      expected.push_back(ask(*engine, prompt_number(i)));
    }
  }
  std::mt19937 random(5);
  int64_t cached = 0;
  for (uint32_t i = 0; i < kills; ++i) {
    const auto seed = static_cast<uint32_t>(random());
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto engine = this->engine(served);
      for (uint32_t next = seed;; ++next) {
        const StoredAnswer answer = ask(*engine, prompt_number(next % kAskedPrompts));
        if (answer.numbers != expected[next % kAskedPrompts].numbers) {
          _exit(3);
        }
      }
    }
    usleep(static_cast<useconds_t>(random() % 200000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status) << ", kill " << i;
    const auto engine = this->engine(served);
    for (uint32_t prompt = i % 2; prompt < kAskedPrompts; prompt += 5) {
      const StoredAnswer answer = ask(*engine, prompt_number(prompt));
      ASSERT_EQ(answer.numbers, expected[prompt].numbers) << "kill " << i;
      cached += answer.cached;
    }
    EXPECT_EQ(engine->stats().tiers.disk.damaged_blocks, 0);
  }
  EXPECT_GT(cached, 0);
}

TEST_F(StoresTest, RefuseWhatTheyDoNotServe) {
  const auto refusal = [&](const EngineOptions& options) {
    return std::string(try_engine(options).status().message());
  };
  EngineOptions without = options(kKvPresetF16, host());
  without.prefix_cache = false;
  EXPECT_NE(refusal(without).find("prefix-cache must be on"), std::string::npos);
  EXPECT_NE(refusal(options(kKvPresetF16, {.host_bytes = 5})).find("one block"), std::string::npos);
  const auto owner = engine(options(kKvPresetF16, disk()));
  EXPECT_NE(refusal(options(kKvPresetF16, disk())).find("another process"), std::string::npos);
}

}  // namespace
}  // namespace tessera
