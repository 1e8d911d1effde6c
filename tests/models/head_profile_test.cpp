#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/checkpoint/head_profile_file.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/model_config.h"
#include "models/weights/random_checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::FloatEq;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

auto is_profile(float place) {
  return Field(&HeadProfile::place, FloatEq(place));
}

TEST(HeadProfile, RanksRowsByTheirLosses) {
  const float losses[] = {0.1f, 0.4f, 0.0f, 0.1f};
  EXPECT_THAT(head_profiles(losses),
              ElementsAre(is_profile(0.25f), is_profile(0), is_profile(0.75f), is_profile(0.5f)));
  const float none[] = {0, 0};
  EXPECT_THAT(head_profiles(none), ElementsAre(is_profile(0), is_profile(0.5f)));
}

class HeadProfileFile : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), tiny_llama_config(), 1).ok());
  }
  // Returns: the message about a model with this profile beside it; empty for none.
  std::string refusal(const std::string& text) const {
    write_file(head_profile_path(directory_.path()), text);
    return std::string(read_model_config(directory_.path()).status().message());
  }
  std::string with(const char* key, const nlohmann::json& value) const {
    nlohmann::json changed = nlohmann::json::parse(print_head_losses(losses_));
    changed[key] = value;
    return changed.dump();
  }

  const ModelConfig config_ = tiny_llama_config();
  const HeadLosses losses_{
      config_.layers, config_.kv_heads,
      std::vector<float>(static_cast<size_t>(config_.layers* config_.kv_heads), 0.5f), "by hand"};
  const TemporaryDirectory directory_;
};

TEST_F(HeadProfileFile, IsReadBesideTheCheckpoint) {
  EXPECT_THAT(read_model_config(directory_.path())->head_profiles, IsEmpty());
  EXPECT_EQ(refusal(print_head_losses(losses_)), "");
  EXPECT_THAT(read_model_config(directory_.path())->head_profiles, SizeIs(losses_.losses.size()));
  EXPECT_EQ(head_profile_path(directory_.path()), directory_ / "head_profile.json");
  EXPECT_EQ(head_profile_path("/models/a.gguf"), "/models/a.gguf.head_profile.json");
}

TEST_F(HeadProfileFile, IsRefusedByTheNameOfItsField) {
  EXPECT_THAT(refusal("{"), HasSubstr("head_profile.json"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(refusal(with("version", 2)), HasSubstr("version"));
  EXPECT_THAT(refusal(with("layers", config_.layers + 1)),
              AllOf(HasSubstr("layers"), HasSubstr("the model has")));
  EXPECT_THAT(refusal(with("kv_heads", 0)), HasSubstr("kv_heads"));
  EXPECT_THAT(refusal(with("losses", {1, 2})), HasSubstr("losses"));
  EXPECT_THAT(refusal(with("losses", {"1"})), HasSubstr("losses"));
  nlohmann::json negative = losses_.losses;
  negative[0] = -1;
  EXPECT_THAT(refusal(with("losses", negative)), HasSubstr("losses"));
}

}  // namespace
}  // namespace tessera
