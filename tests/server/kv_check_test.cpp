// Checks of KV formats at a start, on the shipped model and on copies with harder keys.

#include "server/start/kv_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "engine/kv/kv_presets.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "tests/models/planted_keys.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class KvChecks : public testing::Test {
 protected:
  KvChecks() { setenv("XDG_CACHE_HOME", cache_.path().c_str(), 1); }

  std::filesystem::path plant(const PlantedKeys& keys) {
    PlantedModel::write(keys, planted_.path());
    return planted_.path();
  }

  // Returns: the options of a server's start.
  EngineOptions start(const Settings& settings) {
    EngineOptions options = settings.engine;
    options.context = 512;
    const Backend& backend = cpu_backend(best_cpu_isa());
    const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::load(settings.model);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    const TransformerOptions transformer{.weights = std::nullopt, .limits = step_limits(options)};
    absl::StatusOr<std::unique_ptr<Transformer>> model =
        Transformer::load(settings.model, transformer, backend, pool_.stream());
    EXPECT_TRUE(model.ok()) << model.status();
    config_ = (*model)->config();
    choose_formats(settings, **tokenizer, {*std::move(model), backend, pool_.stream()}, options);
    return options;
  }
  std::vector<KvFormat> ladder(const EngineOptions& options) const {
    return kv_cache_options(options, config_, cpu_backend(best_cpu_isa())).ladder;
  }
  static Settings settings_of(const std::filesystem::path& model) {
    Settings settings;
    settings.model = model;
    return settings;
  }
  static std::filesystem::path shipped() {
    return std::filesystem::path(TESSERA_SOURCE_DIR) / "models/checkpoints/tessera-tiny";
  }
  static float divergence(const EngineOptions& options, KvFormat format) {
    const FormatCheck* check = find_check(options.format_checks, format);
    return check == nullptr ? -1 : check->divergence;
  }

  TemporaryDirectory cache_;
  TemporaryDirectory planted_;
  ThreadPool pool_{2};
  ModelConfig config_;
};

TEST_F(KvChecks, AllowTheDefaultLadderWhereItsFormatHolds) {
  const EngineOptions options = start(settings_of(shipped()));
  EXPECT_EQ(options.kv.name, "k8v4");
  EXPECT_THAT(ladder(options), ElementsAre(kKvK4V2R));
  EXPECT_GT(divergence(options, kKvK4V2R), divergence(options, kKvK8V4));
}

TEST_F(KvChecks, MeasureNothingIfTheyAreOff) {
  Settings settings = settings_of(shipped());
  settings.kv_check = false;
  const EngineOptions options = start(settings);
  EXPECT_THAT(options.format_checks, IsEmpty());
  EXPECT_THAT(ladder(options), IsEmpty());
}

// A frame takes both faults out of the keys (models/weights/key_frames.h). Without frames, k4v2r
// diverges by more than 1 nat here.
TEST_F(KvChecks, FindThatFewBitsHoldKeysWithALargeBiasAndLargePairs) {
  const EngineOptions options = start(settings_of(
      plant({.scaled_pairs = {3, 17, 40}, .exponent = 6, .biased_pairs = {62, 63}, .bias = 150})));
  EXPECT_EQ(options.kv.name, "k8v4");
  EXPECT_THAT(ladder(options), ElementsAre(kKvK4V2R));
  EXPECT_LT(divergence(options, kKvK8V4), 0.005f);
}

// A bias in a pair that turns within seven tokens has no common part to take out.
TEST_F(KvChecks, LeaveOutALadderWhoseFormatFails) {
  const EngineOptions options =
      start(settings_of(plant({.biased_pairs = {0, 1, 2, 3}, .bias = 20})));
  EXPECT_GT(divergence(options, kKvK4V2R), kLargestDivergence);
  EXPECT_THAT(ladder(options), IsEmpty());
}

// Two large channels take the range of a value's 16 levels; the other channels become zero.
TEST_F(KvChecks, ServeK8V8IfOnlyValuesOf4BitsFail) {
  const EngineOptions options =
      start(settings_of(plant({.scaled_values = {5, 77}, .value_exponent = 5})));
  EXPECT_EQ(options.kv.name, "k8v8");
  EXPECT_GT(divergence(options, kKvK8V4), kLargestDivergence);
  EXPECT_LE(divergence(options, kKvK8V8), kLargestDivergence);
}

// A larger bias there takes keys of 8 bits with it.
TEST_F(KvChecks, ServeF16AndSayWhyIfKeysOf8BitsFail) {
  const Settings settings = settings_of(plant({.biased_pairs = {0, 1, 2, 3}, .bias = 100}));
  std::ostringstream log;
  const auto normal = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "checks", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const EngineOptions options = start(settings);
  spdlog::set_default_logger(normal);
  EXPECT_EQ(options.kv.name, "f16");
  EXPECT_GT(divergence(options, kKvK8V4), kLargestDivergence);
  EXPECT_GT(divergence(options, kKvK8V8), kLargestDivergence);
  EXPECT_THAT(log.str(), HasSubstr("this checkpoint is served with KV f16: k8v4 is "));
}

TEST_F(KvChecks, KeepAFormatThatWasAskedFor) {
  Settings settings = settings_of(plant({.biased_pairs = {0, 1, 2, 3}, .bias = 20}));
  settings.kv_auto = false;
  settings.engine.kv = *find_kv_preset("k4v2");
  settings.engine.kv_ladder = std::vector<KvFormat>{kKvK3V2R};
  const EngineOptions options = start(settings);
  EXPECT_EQ(options.kv.name, "k4v2");
  EXPECT_THAT(ladder(options), ElementsAre(kKvK3V2R));
  EXPECT_GT(divergence(options, kKvK4V2), kLargestDivergence) << "the log names it";
}

TEST_F(KvChecks, ReadTheResultsOfEarlierStarts) {
  const Settings settings = settings_of(shipped());
  EXPECT_THAT(known_checks(settings), IsEmpty());
  const EngineOptions first = start(settings);
  EXPECT_EQ(known_checks(settings), first.format_checks);
  // Another result shows that the second start measures nothing.
  const auto folder = cache_.path() / "tessera" / "kv-checks";
  const auto file = *std::filesystem::directory_iterator(folder);
  std::ifstream stream(file.path());
  auto kept = nlohmann::json::parse(stream);
  kept["checks"][1]["divergence"] = 0.5;
  std::ofstream(file.path()) << kept.dump();
  const EngineOptions second = start(settings);
  EXPECT_EQ(divergence(second, kKvK4V2R), 0.5f);
  EXPECT_THAT(ladder(second), IsEmpty());
}

TEST(KvCheckFile, IsMeasuredAgainIfItIsDamagedOrOfAnotherIdentity) {
  TemporaryDirectory folder;
  const CheckFile file(folder.path() / "deep", "one model");
  const std::vector<FormatCheck> checks{{kKvK8V4, 0.25f}, {kKvK4V2R, 2}};
  ASSERT_TRUE(file.write(checks).ok());
  EXPECT_EQ(file.read(), checks);
  std::ifstream stream(file.path());
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const auto with = [&](const std::string& content) {
    std::ofstream(file.path(), std::ios::trunc) << content;
    return file.read();
  };
  EXPECT_EQ(with(text), checks);
  EXPECT_THAT(with(""), IsEmpty());
  EXPECT_THAT(with(text.substr(0, text.size() / 2)), IsEmpty());
  EXPECT_THAT(with("[1, 2]"), IsEmpty());
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"one model", "another"},
                                                        {"\"version\": 1", "\"version\": 9"},
                                                        {"k4v2r", "k9v9"},
                                                        {"0.25", "\"x\""}}) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    EXPECT_THAT(with(changed), IsEmpty()) << to;
  }
}

TEST(KvCheckFile, SaysWhatItCannotWrite) {
  TemporaryDirectory folder;
  std::ofstream(folder.path() / "file") << "no folder";
  const CheckFile file(folder.path() / "file", "a model");
  const absl::Status written = file.write({});
  EXPECT_THAT(std::string(written.message()), testing::HasSubstr("cannot be written"));
  EXPECT_FALSE(CheckFile("", "a model").write({}).ok());
}

}  // namespace
}  // namespace tessera
