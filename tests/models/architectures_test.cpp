// Compares the transformer with Hugging Face transformers on every architecture and config option.
// Random checkpoints are the same everywhere, so their logits are stored in tests/golden.
// architectures_golden.py computed them. With TESSERA_MODELS_OUT=DIR this test leaves the
// checkpoints there for it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "models/architectures/architecture.h"
#include "models/config/rope_table.h"
#include "models/weights/random_checkpoint.h"
#include "tests/models/golden_logits.h"

namespace tessera {
namespace {

using nlohmann::json;

const json& golden() {
  static const json kGolden = golden_architectures();
  return kGolden;
}

class GoldenArchitecture : public testing::TestWithParam<TinyModel> {
 protected:
  // Writes the model, and skips the test if there is nothing to compare it with.
  void SetUp() override {
    const char* named = std::getenv("TESSERA_MODELS_OUT");
    directory_ = (named != nullptr ? named : temporary_.path()) / GetParam().name;
    const TinyModel& tiny = GetParam();
    ASSERT_TRUE(write_random_checkpoint(directory_, tiny.config, 1, tiny.type, tiny.shards).ok());
    if (!golden().contains(tiny.name)) GTEST_SKIP() << "no golden logits";
  }
  const json& entry() const { return golden()[GetParam().name]; }

  TemporaryDirectory temporary_;
  std::filesystem::path directory_;
};

TEST_P(GoldenArchitecture, AgreesWithTransformers) {
  for (const CpuIsa isa : cpu_isas()) {
    SCOPED_TRACE(name(isa));
    expect_golden(entry(), directory_, {.isa = isa});
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenArchitecture, testing::ValuesIn(all_tiny_models()),
                         [](const auto& model) { return model.param.name; });

using FarPositions = GoldenArchitecture;

TEST_P(FarPositions, HaveTheLogitsOfTransformers) {
  expect_golden(entry(), directory_, {.isa = cpu_isas().back()});
}

TEST_P(FarPositions, HaveTheAnglesOfTransformers) {
  const ModelConfig& config = GetParam().config;
  const int64_t pairs = config.rotary_width() / 2;
  const auto floats = static_cast<size_t>(config.context * pairs);
  std::vector<float> cos(floats), sin(floats);
  const auto table = [&](std::vector<float>& numbers) {
    return MatrixView<float>{numbers.data(), config.context, pairs, pairs};
  };
  fill_rope_table(config, /*grows=*/false, table(cos), table(sin));
  ASSERT_EQ(entry().at("angles").back().at("position"), 131'071);
  for (const json& at : entry().at("angles")) {
    const auto row = at.at("position").get<int64_t>();
    for (int64_t i = 0; i < pairs; ++i) {
      const auto pair = static_cast<size_t>(i);
      ASSERT_NEAR(table(cos).row(row)[pair], at.at("cos").at(pair).get<double>(), 2e-7) << row;
      ASSERT_NEAR(table(sin).row(row)[pair], at.at("sin").at(pair).get<double>(), 2e-7) << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FarPositions, testing::ValuesIn(tiny_far_models()),
                         [](const auto& model) { return model.param.name; });

TEST(Architectures, EachHasGoldenLogitsOf480TokensAndGreedyTokens) {
  for (const Architecture& architecture : supported_architectures()) {
    const std::vector<TinyModel> models = all_tiny_models();
    EXPECT_TRUE(std::any_of(models.begin(), models.end(), [&](const TinyModel& tiny) {
      return tiny.config.architecture == architecture.name && golden().contains(tiny.name) &&
             golden()[tiny.name].value("ids", json::array()).size() == 480 &&
             golden()[tiny.name].contains("greedy");
    })) << architecture.name;
  }
}

}  // namespace
}  // namespace tessera
