// A prompt that is partly cached must give exactly the numbers of a full computation. Runs a real
// transformer with random weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "engine/engine.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_shareable.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/kv/whole_layers.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/isas.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

struct Numbers {
  std::string name;
  KvPreset kv;
  const char* architecture = "LlamaForCausalLM";
  void (*change)(ModelConfig&) = nullptr;
  bool coded_residuals = false;
};

// Two layers have a window, which ends within a block of the prefix cache. One has none.
void give_layers_windows(ModelConfig& config) {
  config.layers = 3;
  config.sliding_window = 50;
  config.layer_kinds = {{.windowed = true}, {.windowed = false}, {.windowed = true}};
}

void give_all_layers_windows(ModelConfig& config) {
  config.sliding_window = 50;
}

// Records the log probabilities of the most likely tokens at each generated token.
class LogprobSink final : public RecordingSink {
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

class PrefixHit : public testing::TestWithParam<Numbers> {
 protected:
  static constexpr int32_t kContext = 400;
#ifdef __SANITIZE_ADDRESS__
  static constexpr int32_t kPrompts = 100;  // all splits of 200 prompts take twenty seconds
#else
  static constexpr int32_t kPrompts = 200;
#endif
  static constexpr int32_t kGenerated = 3;

  void SetUp() override {
    ModelConfig config = small_model(kContext, GetParam().architecture);
    if (GetParam().change != nullptr) GetParam().change(config);
    has_windows_ = config.sliding_window > 0;
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), config, 5).ok());
  }

  std::unique_ptr<Engine> engine(int32_t chunk, bool cache) {
    const Backend& backend = cpu_backend(isas_of_this_machine().back());
    EngineOptions options;
    options.max_step_tokens = chunk;
    options.max_sequences = 4;
    options.context = kContext;
    options.kv = GetParam().kv;
    options.kv_coded_residuals = GetParam().coded_residuals;
    options.prefix_cache = cache;
    if (GetParam().kv.policy.selects()) {
      // Without the ladder's format, pages are as large as without a cache. They have bounds each.
      options.kv_ladder = std::vector<KvFormat>{};
    }
    return engine_of({.directory = directory_.path()}, options, backend, threads_.stream());
  }

  // Tokens of a request, and the log probabilities of the most likely ones at each.
  struct Answer {
    std::vector<int32_t> tokens;
    std::vector<float> numbers;
    int32_t cached = 0;
  };
  static Answer ask(Engine& engine, std::vector<int32_t> prompt, int32_t max_tokens) {
    auto sink = std::make_shared<LogprobSink>();
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.deterministic = !GetParam().kv.policy.selects();  // which refuses it
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = kMaxTopLogprobs;
    request.sinks = {sink};
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
    while (engine.step()) {
    }
    return {sink->tokens(), sink->numbers, sink->finish()->cached_tokens};
  }

  std::vector<int32_t> prompt(std::mt19937& random) {
    std::vector<int32_t> tokens(1 + random() % (kContext - kGenerated - 1));
    for (int32_t& token : tokens) {
      token = 3 + static_cast<int32_t>(random() % 94);
    }
    return tokens;
  }

  ThreadPool threads_{1};
  TemporaryDirectory directory_;
  bool has_windows_ = false;
};

TEST_P(PrefixHit, HasTheBitsOfAMissForEverySplitAndAnyChunkSize) {
  const auto miss = engine(512, false);
  std::vector<std::unique_ptr<Engine>> hits;
  for (const int32_t chunk : {512, 100, 64, 33}) {
    hits.push_back(engine(chunk, true));
  }
  const int32_t block = hits[0]->stats().prefix_block_tokens;
  ASSERT_GT(block, 0);
  ASSERT_LE(2 * block, kContext) << "prompts of several blocks";
  std::mt19937 random(17);
  int64_t cached = 0;
  for (int32_t i = 0; i < kPrompts; ++i) {
    const std::vector<int32_t> whole = prompt(random);
    const Answer expected = ask(*miss, whole, kGenerated);
    ASSERT_EQ(expected.numbers.size(), kGenerated * (1 + 2 * kMaxTopLogprobs));
    Engine& engine = *hits[static_cast<size_t>(i) % hits.size()];
    const KvPolicy& policy = GetParam().kv.policy;
    // Short blocks behind sections; models with windows have none.
    const int32_t step = policy.replays() && !has_windows_ ? kKvGroup : block;
    for (int32_t split = 0; split <= std::ssize(whole); split += step) {
      SCOPED_TRACE(testing::Message() << "prompt " << i << " of " << whole.size() << " tokens, "
                                      << split << " of them known");
      engine.flush_cache();
      if (split > 0) {
        std::vector<int32_t> known(whole.begin(), whole.begin() + split);
        known.push_back(3);
        ask(engine, known, 0);
      }
      const Answer answer = ask(engine, whole, kGenerated);
      const auto tokens = static_cast<int32_t>(whole.size());
      const int32_t max =
          std::min({tokens - 1, shareable_tokens(policy, tokens), split}) / step * step;
      const int32_t replayable = policy.replays() ? kContext - policy.section : kContext;
      const auto in_whole = [&](int32_t count) {
        return std::min(count, replayable) / block * block;
      };
      // The known prompt left short blocks behind its own whole ones.
      const bool has_short = in_whole(max) == in_whole(split);
      EXPECT_EQ(answer.cached,
                has_short ? std::min(max, in_whole(max) + block - step) : in_whole(max));
      EXPECT_EQ(answer.tokens, expected.tokens);
      ASSERT_EQ(answer.numbers, expected.numbers);
      cached += answer.cached;
    }
  }
  EXPECT_GT(cached, kPrompts * block);
}

TEST_P(PrefixHit, GoesOnWithWhatWasGenerated) {
  const auto engine = this->engine(64, true);
  const auto miss = this->engine(64, false);
  const int32_t block = engine->stats().prefix_block_tokens;
  std::mt19937 random(3);
  std::vector<int32_t> chat = prompt(random);
  chat.resize(10);
  int32_t cached = 0;
  while (std::ssize(chat) + 70 < kContext) {  // one turn of the chat
    const Answer answer = ask(*engine, chat, 40);
    EXPECT_EQ(answer.numbers, ask(*miss, chat, 40).numbers);
    EXPECT_GE(answer.cached, cached);
    cached = answer.cached;
    chat.insert(chat.end(), answer.tokens.begin(), answer.tokens.end());
    for (int32_t i = 0; i < 20; ++i) {
      chat.push_back(3 + static_cast<int32_t>(random() % 94));
    }
  }
  EXPECT_GE(cached, block);
}

// Reads four of up to six closed groups, in the last layer.
Numbers selecting() {
  Numbers numbers{"k8v4_quest", *find_kv_preset("k8v4-quest"), "LlamaForCausalLM",
                  [](ModelConfig& config) { config.layers = kWholeLayers + 1; }};
  numbers.kv.policy.all().read_tokens = kMinReadTokens;
  return numbers;
}

Numbers with_coded_residuals(Numbers numbers) {
  numbers.coded_residuals = true;
  return numbers;
}

Numbers windowed(const char* name, const KvPreset& preset) {
  return {name, preset, "MinistralForCausalLM", give_layers_windows};
}

Numbers selecting_beside_windows() {
  Numbers numbers = windowed("k8v4_quest_beside_windows", selecting().kv);
  numbers.change = [](ModelConfig& config) {
    give_layers_windows(config);
    config.layer_kinds = {{.windowed = true}, {.windowed = true}, {.windowed = false}};
  };
  return numbers;
}

INSTANTIATE_TEST_SUITE_P(
    All, PrefixHit,
    testing::Values(
        Numbers{"f32", kKvPresetF32}, Numbers{"f16", kKvPresetF16},
        Numbers{"k8v4", *find_kv_preset("k8v4")}, Numbers{"k4v2", *find_kv_preset("k4v2")},
        Numbers{"k4v2r", *find_kv_preset("k4v2r")}, Numbers{"fp8", *find_kv_preset("fp8")},
        Numbers{"k3v3r", *find_kv_preset("k3v3r")}, Numbers{"s50", *find_kv_preset("s50")},
        Numbers{"replayed_sections", short_sections(128)},
        Numbers{"replayed_sections_by_output", short_sections(128, "replay-50")}, selecting(),
        with_coded_residuals({"k8v4_behind_codes", *find_kv_preset("k8v4")}),
        with_coded_residuals({"replayed_sections_behind_codes", short_sections(128)}),
        with_coded_residuals(windowed("k4v2_of_windows_behind_codes", *find_kv_preset("k4v2"))),
        windowed("replayed_sections_beside_windows", short_sections(128)),
        windowed("replayed_sections_by_output_beside_windows", short_sections(128, "replay-50")),
        selecting_beside_windows(),
        Numbers{"k8v4_of_qwen3", *find_kv_preset("k8v4"), "Qwen3ForCausalLM"},
        Numbers{"k8v4_of_windows_in_all_layers", *find_kv_preset("k8v4"), "MistralForCausalLM",
                give_all_layers_windows},
        windowed("f16_of_windows_by_layer", *find_kv_preset("f16")),
        windowed("k8v4_of_windows_by_layer", *find_kv_preset("k8v4")),
        windowed("k4v2_of_windows_by_layer", *find_kv_preset("k4v2")),
        windowed("s50_of_windows_by_layer", *find_kv_preset("s50"))),
    [](const auto& numbers) { return numbers.param.name; });

}  // namespace
}  // namespace tessera
