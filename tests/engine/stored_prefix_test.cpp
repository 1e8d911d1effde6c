// A prefix that comes back from a store must give exactly the numbers of one that had stayed. Runs
// a real transformer with random weights.

#include <algorithm>
#include <cstdlib>

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_policy_fields.h"
#include "tests/engine/stores_fixture.h"

namespace tessera {
namespace {

struct ServedPreset {
  std::string name;
  KvPreset kv;
};

class StoredPrefix : public StoresTest, public testing::WithParamInterface<ServedPreset> {
 protected:
  // TESSERA_STORE_PROMPTS sets the number of prompts. Four fit into the pages, more in sections.
  StoredPrefix() {
    const char* const wanted = std::getenv("TESSERA_STORE_PROMPTS");
    const uint32_t usual = GetParam().kv.policy.replays() ? 24 : 12;
    prompts_ = wanted != nullptr ? static_cast<uint32_t>(std::atoi(wanted)) : usual;
  }

  // Answers of an engine that never evicts. The third answer to a prompt finds it also under a
  // private policy.
  std::vector<StoredAnswer> expected() {
    EngineOptions large = options(GetParam().kv);
    large.kv_bytes = prompts_ / 2 * engine(large)->options().kv_bytes;
    const auto memory = engine(large);
    std::vector<StoredAnswer> answers;
    for (uint32_t i = 0; i < prompts_; ++i) {
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
  static void expect_same(const StoredAnswer& answer, const StoredAnswer& expected) {
    EXPECT_EQ(answer.cached, stored_of(expected));
    EXPECT_EQ(answer.tokens, expected.tokens);
    EXPECT_EQ(answer.numbers, expected.numbers);
  }
  static void ask_often(Engine& engine, uint32_t number) {
    for (int32_t time = 0; time < 3; ++time) {
      ask(engine, prompt_number(number));
      settle(engine);
    }
  }

  uint32_t prompts_;
};

TEST_P(StoredPrefix, HasTheBitsOfOneThatStayed) {
  const std::vector<StoredAnswer> expected = this->expected();
  for (const KvTierOptions& tiers : {host(), disk(), both()}) {
    const auto engine = this->engine(options(GetParam().kv, tiers));
    for (uint32_t i = 0; i < prompts_; ++i) {
      ask_often(*engine, i);
    }
    ASSERT_GT(engine->stats().cache.evicted_blocks, 0);
    for (uint32_t i = 0; i < prompts_; ++i) {
      expect_same(ask(*engine, prompt_number(i)), expected[i]);
      settle(*engine);
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
  for (uint32_t i = 0; i < prompts_; i += prompts_ / 4) {
    const auto engine = this->engine(options(GetParam().kv, disk()));
    for (uint32_t j = i; j < i + prompts_ / 4; ++j) {
      ask_often(*engine, j);
    }
  }
  const auto engine = this->engine(options(GetParam().kv, both()));
  for (uint32_t i = 0; i < prompts_; ++i) {
    expect_same(ask(*engine, prompt_number(i)), expected[i]);
    settle(*engine);
  }
  EXPECT_GT(engine->stats().tiers.disk_read_blocks, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, StoredPrefix,
    testing::Values(ServedPreset{"f32", kKvPresetF32}, ServedPreset{"f16", kKvPresetF16},
                    ServedPreset{"k8v8", *find_kv_preset("k8v8")},
                    ServedPreset{"k8v4", *find_kv_preset("k8v4")},
                    ServedPreset{"k4v4", *find_kv_preset("k4v4")},
                    ServedPreset{"k4v2r", *find_kv_preset("k4v2r")},
                    ServedPreset{"leankv", *find_kv_preset("leankv")},
                    ServedPreset{"k6v4r", *find_kv_preset("k6v4r")},
                    ServedPreset{"replay", short_sections(128, "replay-50")},
                    ServedPreset{"replay31", short_sections(128, "replay-31")}),
    [](const auto& preset) { return preset.param.name; });

// All further formats that this machine serves.
std::vector<ServedPreset> further_presets() {
  std::vector<ServedPreset> presets;
  const auto add = [&](KvFormat format) {
    if (is_supported(format) &&
        check_served(cpu_backend(isas_of_this_machine().back()), format, 32).ok()) {
      std::string name = name_of(format);
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
      presets.push_back({name, uniform_kv(format)});
    }
  };
  for (const uint8_t keys : std::initializer_list<uint8_t>{8, 6, 4, 3, 2}) {
    for (const uint8_t values : std::initializer_list<uint8_t>{8, 4, 3, 2, 1}) {
      add({keys, values});
      add({keys, values, KvFormat::kKeepAll, KvFormat::kKeepAll, true});
    }
  }
  for (const KvFormat format : {kKvFp8, kKvS50, kKvS70, kKvS50K4V4, kKvS70K4V4}) {
    add(format);
  }
  for (const char* const name :
       {"snapkv", "streaming", "mustafar-70", "kv-compress", "k8v4-quest"}) {
    presets.push_back({name, *find_kv_preset(name)});
    std::replace(presets.back().name.begin(), presets.back().name.end(), '-', '_');
  }
  return presets;
}

INSTANTIATE_TEST_SUITE_P(Further, StoredPrefix, testing::ValuesIn(further_presets()),
                         [](const auto& preset) { return preset.param.name; });

}  // namespace
}  // namespace tessera
