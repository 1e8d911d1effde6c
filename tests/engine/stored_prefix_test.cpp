// A prefix that comes back from a store must give exactly the numbers of one that had stayed. Runs
// a real transformer with random weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>

#include "engine/engine.h"
#include "engine/kv/kv_policy_fields.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/random_checkpoint.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/isas.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

constexpr int32_t kContextOfStores = 400;
constexpr int32_t kGeneratedTokens = 3;
constexpr int64_t kStoreBytes = int64_t{64} << 20;

class NumbersSink final : public RecordingSink {
 public:
  void on_logprobs(const TokenLogprobs& logprobs) override {
    numbers.push_back(logprobs.chosen.logprob);
    for (const TokenLogprob& one : logprobs.top) {
      numbers.push_back(static_cast<float>(one.token));
      numbers.push_back(one.logprob);
    }
  }
  std::vector<float> numbers;
};

struct StoredAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> numbers;
  int32_t cached = 0;
};

class StoresTest : public testing::Test {
 protected:
  void SetUp() override {
    const ModelConfig config = small_model(kContextOfStores);
    ASSERT_TRUE(write_random_checkpoint(directory_ / "model", config, 5).ok());
  }

  EngineOptions options(const KvPreset& preset, const KvTierOptions& tiers = {}) const {
    EngineOptions options;
    options.max_step_tokens = 100;
    options.max_sequences = 4;  // and pages for four whole contexts
    options.context = kContextOfStores;
    options.kv = preset;
    options.kv_ladder = std::vector<KvFormat>{};
    options.tiers = tiers;
    return options;
  }
  KvTierOptions host() const { return {.host_bytes = kStoreBytes}; }
  KvTierOptions disk() const { return {.disk = directory_ / "kv", .disk_bytes = kStoreBytes}; }
  KvTierOptions both() const {
    return {.host_bytes = kStoreBytes, .disk = directory_ / "kv", .disk_bytes = kStoreBytes};
  }

  absl::StatusOr<std::unique_ptr<Engine>> try_engine(const EngineOptions& options) {
    const Backend& backend = cpu_backend(isas_of_this_machine().back());
    auto model = Transformer::load(
        directory_ / "model",
        {.weights = WeightFormat::f32, .limits = step_limits(options), .max_logits_rows = 5},
        backend, threads_.stream());
    EXPECT_TRUE(model.ok()) << model.status();
    return Engine::create(options, std::move(model).value(), backend, threads_.stream());
  }
  std::unique_ptr<Engine> engine(const EngineOptions& options) {
    auto made = try_engine(options);
    EXPECT_TRUE(made.ok()) << made.status();
    return std::move(made).value();
  }

  static StoredAnswer ask(Engine& engine, std::vector<int32_t> prompt,
                          const std::string& salt = {}) {
    auto sink = std::make_shared<NumbersSink>();
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = kGeneratedTokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = kMaxTopLogprobs;
    request.cache_salt = salt;
    request.sinks = {sink};
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
    while (engine.step()) {
    }
    EXPECT_TRUE(sink->finish().has_value());
    return {sink->tokens(), sink->numbers, sink->finish()->cached_tokens};
  }

  static std::vector<int32_t> prompt_number(uint32_t number) {
    std::mt19937 random(number);
    std::vector<int32_t> tokens(300 + random() % 90);
    for (int32_t& token : tokens) {
      token = 3 + static_cast<int32_t>(random() % 94);
    }
    return tokens;
  }

  ThreadPool threads_{1};
  TemporaryDirectory directory_;
};

struct ServedPreset {
  std::string name;
  KvPreset kv;
};

class StoredPrefix : public StoresTest, public testing::WithParamInterface<ServedPreset> {
 protected:
  static constexpr uint32_t kPromptCount = 12;  // three times as many as the pages hold

  // Answers of an engine that never evicts. The third answer to a prompt finds it also under a
  // private policy.
  std::vector<StoredAnswer> expected() {
    EngineOptions large = options(GetParam().kv);
    large.kv_bytes = 6 * engine(large)->options().kv_bytes;
    const auto memory = engine(large);
    std::vector<StoredAnswer> answers;
    for (uint32_t i = 0; i < kPromptCount; ++i) {
      ask_often(*memory, i);
      answers.push_back(ask(*memory, prompt_number(i)));
      EXPECT_GT(answers.back().cached, 0);
    }
    return answers;
  }
  // Short blocks behind sections are not stored.
  static int32_t stored_of(const StoredAnswer& expected) {
    const KvPolicy& policy = GetParam().kv.policy;
    const int32_t unit = policy.replays() ? policy.section : 1;
    return expected.cached / unit * unit;
  }
  // A block on its way to a store is a miss, so on a
  // busy machine fewer tokens are found.
  static void expect_same(const StoredAnswer& answer, const StoredAnswer& expected) {
    EXPECT_LE(answer.cached, stored_of(expected));
    EXPECT_EQ(answer.tokens, expected.tokens);
    EXPECT_EQ(answer.numbers, expected.numbers);
  }
  static void ask_often(Engine& engine, uint32_t number) {
    for (int32_t time = 0; time < 3; ++time) {
      ask(engine, prompt_number(number));
    }
  }
};

TEST_P(StoredPrefix, HasTheBitsOfOneThatStayed) {
  const std::vector<StoredAnswer> expected = this->expected();
  for (const KvTierOptions& tiers : {host(), disk(), both()}) {
    const auto engine = this->engine(options(GetParam().kv, tiers));
    for (uint32_t i = 0; i < kPromptCount; ++i) {
      ask_often(*engine, i);
    }
    ASSERT_GT(engine->stats().cache.evicted_blocks, 0);
    for (uint32_t i = 0; i < kPromptCount; ++i) {
      expect_same(ask(*engine, prompt_number(i)), expected[i]);
    }
    const KvTierStats stats = engine->stats().tiers;
    EXPECT_GT(stats.restored_blocks, 0);
    EXPECT_EQ(stats.unwritten_blocks, 0);
    EXPECT_EQ(stats.host.damaged_blocks + stats.disk.damaged_blocks, 0);
    std::filesystem::remove_all(directory_ / "kv");
  }
}

TEST_P(StoredPrefix, HasTheSameBitsAfterARestart) {
  const std::vector<StoredAnswer> expected = this->expected();
  for (uint32_t i = 0; i < kPromptCount; i += 3) {
    const auto engine = this->engine(options(GetParam().kv, disk()));
    for (uint32_t j = i; j < i + 3; ++j) {
      ask_often(*engine, j);
    }
  }
  const auto engine = this->engine(options(GetParam().kv, both()));
  for (uint32_t i = 0; i < kPromptCount; ++i) {
    const StoredAnswer answer = ask(*engine, prompt_number(i));
    expect_same(answer, expected[i]);
    EXPECT_EQ(answer.cached, stored_of(expected[i])) << "the end of an engine writes all blocks";
  }
  EXPECT_GT(engine->stats().tiers.disk_read_blocks, 0);
}

INSTANTIATE_TEST_SUITE_P(All, StoredPrefix,
                         testing::Values(ServedPreset{"f32", kKvPresetF32},
                                         ServedPreset{"f16", kKvPresetF16},
                                         ServedPreset{"k8v8", *find_kv_preset("k8v8")},
                                         ServedPreset{"k8v4", *find_kv_preset("k8v4")},
                                         ServedPreset{"k4v4", *find_kv_preset("k4v4")},
                                         ServedPreset{"k4v2r", *find_kv_preset("k4v2r")},
                                         ServedPreset{"leankv", *find_kv_preset("leankv")},
                                         ServedPreset{"replay", short_sections(128, "replay-50")}),
                         [](const auto& preset) { return preset.param.name; });

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
