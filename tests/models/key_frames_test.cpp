#include "models/weights/key_frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "models/weights/random_checkpoint.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::FloatNear;

// A head of four channels in two pairs, (0, 2) and (1, 3).
HeadChannels plain_head() {
  return {.queries = {1, 1, 1, 1}, .keys = {1, 1, 1, 1}, .bias = {0, 0, 0, 0}};
}

// Returns: the frame of a head whose pairs turn with these frequencies.
HeadFrame framed(const HeadChannels& head, const std::vector<double>& frequencies,
                 double attention_factor = 1) {
  return frame_of(head, {.frequencies = frequencies, .attention_factor = attention_factor});
}

TEST(KeyFrame, HasTheBiasOfPairsThatHardlyTurnAsItsCentre) {
  HeadChannels head = plain_head();
  head.bias = {300, 50, -200, 50};
  const HeadFrame frame = framed(head, {1e-7, 1.0});
  EXPECT_THAT(frame.centre[0], FloatNear(300, 0.5f));
  EXPECT_THAT(frame.centre[2], FloatNear(-200, 0.5f));
  EXPECT_THAT(frame.centre[1], FloatNear(0, 0.1f)) << "it turns once in six tokens";
  EXPECT_THAT(frame.centre[3], FloatNear(0, 0.1f));
}

TEST(KeyFrame, HasTheMeanOfTheRotatedBiasAsItsCentre) {
  HeadChannels head = plain_head();
  head.bias = {3, 0, 4, 0};
  const double frequency = 4e-4;
  double first = 0;
  double second = 0;
  for (int64_t position = 0; position < kCentredPositions; ++position) {
    const double angle = static_cast<double>(position) * frequency;
    first += 1.25 * (3 * std::cos(angle) - 4 * std::sin(angle));
    second += 1.25 * (3 * std::sin(angle) + 4 * std::cos(angle));
  }
  const auto n = static_cast<double>(kCentredPositions);
  const HeadFrame frame = framed(head, {frequency, 1.0}, 1.25);
  EXPECT_NEAR(frame.centre[0], first / n, 1e-5);
  EXPECT_NEAR(frame.centre[2], second / n, 1e-5);
}

TEST(KeyFrame, HasTheWholeBiasAsItsCentreWithoutRope) {
  HeadChannels head = plain_head();
  head.bias = {3, -4, 5, 6};
  EXPECT_THAT(frame_of(head, {}).centre, ElementsAre(3, -4, 5, 6));
}

TEST(KeyFrame, BalancesEachPairByOnePowerOfTwo) {
  HeadChannels head{.queries = {1, 1, 1, 1, 1, 1}, .keys = {1, 1, 1, 1, 1, 1}, .bias = {}};
  head.bias.resize(6);
  head.keys[1] = head.keys[4] = 64 * 64;  // pair 1: |key| is 64
  head.queries[1] = head.queries[4] = 1.0 / (64 * 64);
  const HeadFrame frame = framed(head, {0.1, 0.2, 0.3});
  EXPECT_THAT(frame.scale, ElementsAre(1, 1.0f / 64, 1, 1, 1.0f / 64, 1))
      << "64 for 64 makes |key| and |query| 1";
}

TEST(KeyFrame, LeavesPairsThatAreNearlyInBalance) {
  HeadChannels head = plain_head();
  head.keys = {3, 1, 3, 1};
  EXPECT_THAT(framed(head, {0.1, 0.2}).scale, Each(1.0f));
}

TEST(KeyFrame, HasFiniteScalesForRowsOfZeros) {
  HeadChannels head = plain_head();
  head.keys = {0, 1, 0, 1};
  head.queries = {1, 0, 1, 0};
  EXPECT_THAT(framed(head, {0.1, 0.2}).scale, Each(1.0f));
}

TEST(KeyFrame, ScalesByALimitedFactor) {
  HeadChannels head{.queries = {1, 1, 1, 1, 1, 1}, .keys = {1, 1e30, 1, 1, 1e30, 1}, .bias = {}};
  head.bias.resize(6);
  EXPECT_EQ(framed(head, {0.1, 0.2, 0.3}).scale[1], 1.0f / 256);
}

absl::StatusOr<KeyFrames> frames_of(const ModelConfig& config) {
  TemporaryDirectory directory;
  EXPECT_TRUE(write_random_checkpoint(directory.path(), config, 7, TensorType::f32, 1).ok());
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::open(directory.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return KeyFrames::create(config, {}, *checkpoint, cpu_backend(CpuIsa::scalar), 2);
}

TEST(KeyFrames, AreAbsentInAModelThatNeedsNone) {
  const auto frames = frames_of(tiny_llama_config());
  ASSERT_TRUE(frames.ok()) << frames.status();
  EXPECT_TRUE(frames->of(0).empty());
  EXPECT_TRUE(frames->of(1).empty());
}

TEST(KeyFrames, HaveOneForEachLayerWithABias) {
  ModelConfig config = tiny_llama_config();
  config.architecture = "Qwen2ForCausalLM";
  const auto frames = frames_of(config);
  ASSERT_TRUE(frames.ok()) << frames.status();
  for (const int32_t layer : {0, 1}) {
    EXPECT_EQ(std::ssize(frames->of(layer).centre), config.kv_width());
    EXPECT_EQ(std::ssize(frames->of(layer).scale), config.kv_width());
  }
  EXPECT_NE(frames->of(0).centre[3], frames->of(1).centre[3]);
}

}  // namespace
}  // namespace tessera
