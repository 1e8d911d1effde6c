// Compares the transformer with Hugging Face transformers on every architecture and config option.
// Random checkpoints are the same everywhere, so their logits are stored in tests/golden.
// architectures_golden.py computed them. With TESSERA_MODELS_OUT=DIR this test leaves the
// checkpoints there for it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "models/architectures/architecture.h"
#include "models/random_checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/models/model_runner.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

using nlohmann::json;

const std::filesystem::path kGolden = TESSERA_SOURCE_DIR "/tests/golden/architectures.json";

class GoldenArchitecture : public testing::TestWithParam<TinyModel> {};

TEST_P(GoldenArchitecture, AgreesWithTransformers) {
  const TinyModel& tiny = GetParam();
  const TemporaryDirectory temporary;
  const char* named = std::getenv("TESSERA_MODELS_OUT");
  const std::filesystem::path root = named != nullptr ? named : temporary.path();
  ASSERT_TRUE(
      write_random_checkpoint(root / tiny.name, tiny.config, 1, tiny.type, tiny.shards).ok());
  const json golden = json::parse(read_file(kGolden), nullptr, /*allow_exceptions=*/false);
  if (!golden.is_object() || !golden.contains(tiny.name)) GTEST_SKIP() << "no golden logits";
  const json& entry = golden[tiny.name];
  const auto ids = entry["ids"].get<std::vector<int32_t>>();
  const double bound = entry.contains("greedy") ? 1e-4 : 2e-5;
  for (const CpuIsa isa : cpu_isas()) {
    SCOPED_TRACE(name(isa));
    const auto logits = ModelRunner(root / tiny.name, {.isa = isa}).sequence(ids, 64);
    for (const json& at : entry["logits"]) {
      const auto expected = at["values"].get<std::vector<double>>();
      const auto& found = logits.at(at["position"].get<size_t>());
      ASSERT_EQ(expected.size(), found.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(double{found[i]}, expected[i], bound) << at["position"] << ", " << i;
      }
    }
    if (entry.contains("greedy")) {
      EXPECT_EQ(ModelRunner(root / tiny.name, {.isa = isa}).greedy(ids, 24),
                entry["greedy"].get<std::vector<int32_t>>());
    }
  }
}

TEST(Architectures, EachHasGoldenLogits) {
  const json golden = json::parse(read_file(kGolden));
  for (const Architecture& architecture : supported_architectures()) {
    const std::vector<TinyModel> models = all_tiny_models();
    EXPECT_TRUE(std::any_of(models.begin(), models.end(), [&](const TinyModel& tiny) {
      return tiny.config.architecture == architecture.name && golden.contains(tiny.name);
    })) << architecture.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenArchitecture, testing::ValuesIn(all_tiny_models()),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace tessera
