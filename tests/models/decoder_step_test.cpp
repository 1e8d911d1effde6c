// LayerOps decides which rows an op writes as a product reads them, and which rows share a call of
// the op of adapters.

#include "models/decoder_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "models/config/model_config.h"
#include "models/weights/random_checkpoint.h"
#include "tests/models/model_runner.h"
#include "tests/models/random_adapter.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

using testing::ElementsAre;

// Calls that a backend has received.
struct Calls {
  std::vector<RoundedRows> written;  // of norms and gates
  std::vector<LinearArgs> products;
  std::vector<std::vector<LowRankRows>> low_rank;  // of each call
};
Calls calls;

// A backend that rounds rows ahead for bf16 weights alone, and computes nothing.
Backend noting_backend() {
  Backend backend{};
  backend.rounds_ahead = [](WeightFormat format) { return format == WeightFormat::bf16; };
  backend.rms_norm = [](const RmsNormArgs& args, Stream) { calls.written.push_back(args.rounded); };
  backend.silu_mul = [](const SiluMulArgs& args, Stream) { calls.written.push_back(args.rounded); };
  backend.linear = [](const LinearArgs& args, Stream) { calls.products.push_back(args); };
  backend.low_rank = [](const LowRankArgs& args, Stream) {
    calls.low_rank.emplace_back(args.rows.begin(), args.rows.end());
  };
  return backend;
}

StackedWeight stacked(const std::vector<WeightFormat>& formats) {
  StackedWeight weight;
  for (const WeightFormat format : formats) {
    weight.add({.format = format, .rows = 4, .cols = 8});
  }
  return weight;
}

class LayerOpsTest : public testing::Test {
 protected:
  void SetUp() override {
    calls = {};
    workspace_.linear_scratch = scratch_;
  }
  LayerOps ops() const { return {backend_, config_, workspace_, key_frames_, nullptr, {}}; }

  // Calls both stages with a product behind them.
  void compute(const StackedWeight& weight) const {
    const MatrixView<float> out{nullptr, 2, 4 * weight.count, 4 * weight.count};
    ops().linear_of_norm({.hidden = rows_, .weight = {}, .out = rows_}, weight, {}, out);
    ops().add_linear_of_gate({nullptr, 2, 16, 16}, rows_, weight, {}, out, {});
  }
  std::vector<WeightFormat> written() const {
    std::vector<WeightFormat> formats;
    for (const RoundedRows& rows : calls.written) {
      formats.push_back(rows.format);
    }
    return formats;
  }
  std::vector<bool> read() const {
    std::vector<bool> rounded;
    for (const LinearArgs& args : calls.products) {
      rounded.push_back(args.rounded);
    }
    return rounded;
  }

  Backend backend_ = noting_backend();
  const ModelConfig config_{};
  std::vector<std::byte> scratch_ = std::vector<std::byte>(16);
  Workspace::Views workspace_;
  KeyFrames key_frames_;
  const MatrixView<float> rows_{nullptr, 2, 8, 8};
};

TEST_F(LayerOpsTest, RowsForProductsOfOneFormatAreWrittenOnceInTheirScratch) {
  compute(stacked({WeightFormat::bf16, WeightFormat::bf16}));
  EXPECT_THAT(written(), ElementsAre(WeightFormat::bf16, WeightFormat::bf16));
  EXPECT_THAT(read(), ElementsAre(true, true, true, true));
  for (const RoundedRows& rows : calls.written) {
    EXPECT_EQ(rows.scratch.data(), scratch_.data());
    EXPECT_EQ(rows.scratch.size(), scratch_.size());
  }
  for (const LinearArgs& args : calls.products) {
    EXPECT_EQ(args.scratch.data(), scratch_.data());
    EXPECT_EQ(args.in.rows, 2);
    EXPECT_EQ(args.in.cols, 8);
  }
}

TEST_F(LayerOpsTest, PartsOfDifferentFormatsRoundTheirRowsThemselves) {
  compute(stacked({WeightFormat::bf16, WeightFormat::f16, WeightFormat::bf16}));
  EXPECT_THAT(written(), ElementsAre(WeightFormat::f32, WeightFormat::f32));
  EXPECT_THAT(read(), testing::Each(false));
}

class AdaptedLayerOps : public LayerOpsTest {
 protected:
  void SetUp() override {
    LayerOpsTest::SetUp();
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), tiny_llama_config(), 1).ok());
    runner_ = std::make_unique<ModelRunner>(directory_.path(), ModelRunner::Options{});
    everywhere_ = adapter("everywhere", {});
    only_qkv_ = adapter("only_qkv", {.slots = {WeightSlot::qkv}});
  }
  std::shared_ptr<const LoraAdapter> adapter(const char* name, const RandomAdapter& of) const {
    write_random_adapter(directory_.path() / name, tiny_llama_config(), of);
    const auto adapter = runner_->model().load_adapter(directory_.path() / name);
    EXPECT_TRUE(adapter.ok()) << adapter.status();
    return adapter.value();
  }
  // Calls a product of 100 rows with room for `room` rows' ranks.
  void add_to_all(const std::vector<AdapterRows>& rows, int64_t room) {
    workspace_.low_rank = {numbers_.data(), room, 8, 8};
    const MatrixView<float> all{numbers_.data(), 100, 8, 8};
    ops().add_linear(all, stacked({WeightFormat::bf16}), {}, all, {rows, 1, &LoraLayer::down});
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<ModelRunner> runner_;
  std::shared_ptr<const LoraAdapter> everywhere_, only_qkv_;
  std::vector<float> numbers_ = std::vector<float>(1024);
};

// Returns: {first row, rows, first row of scratch} of each piece of each call.
std::vector<std::vector<std::array<int32_t, 3>>> pieces_of_calls() {
  std::vector<std::vector<std::array<int32_t, 3>>> found;
  for (const std::vector<LowRankRows>& call : calls.low_rank) {
    found.emplace_back();
    for (const LowRankRows& rows : call) {
      found.back().push_back({rows.first_row, rows.count, rows.first_low});
    }
  }
  return found;
}

TEST_F(AdaptedLayerOps, RowsThatAnAdapterReadsTooAreNotRounded) {
  const AdapterRows rows{everywhere_.get(), 1, 1};
  const AdaptedProduct adapted{{&rows, 1}, 1, &LoraLayer::down};
  const StackedWeight weight = stacked({WeightFormat::bf16});
  const MatrixView<float> all{numbers_.data(), 2, 8, 8};
  workspace_.low_rank = {numbers_.data(), 2, 8, 8};
  ops().linear_of_norm({.hidden = all, .weight = {}, .out = all}, weight, {}, all, adapted);
  ops().add_linear_of_gate(all, all, weight, {}, all, adapted);
  EXPECT_THAT(written(), ElementsAre(WeightFormat::f32, WeightFormat::f32));
  EXPECT_THAT(read(), ElementsAre(false, false));
  // Each of the two products is followed by A and B of the second row.
  EXPECT_THAT(pieces_of_calls(), testing::Each(ElementsAre(std::array{1, 1, 0})));
  EXPECT_EQ(calls.low_rank.size(), 2U);
}

TEST_F(AdaptedLayerOps, AllAdaptersOfAStepShareACall) {
  add_to_all({{everywhere_.get(), 0, 1}, {only_qkv_.get(), 1, 5}, {everywhere_.get(), 7, 2}}, 10);
  EXPECT_THAT(pieces_of_calls(),
              ElementsAre(ElementsAre(std::array{0, 1, 0}, std::array{7, 2, 1})));
  calls = {};
  add_to_all({{only_qkv_.get(), 1, 5}}, 10);
  EXPECT_THAT(pieces_of_calls(), testing::IsEmpty());
}

TEST_F(AdaptedLayerOps, RowsBeyondTheScratchHaveACallOfTheirOwn) {
  add_to_all({{everywhere_.get(), 0, 1}, {everywhere_.get(), 2, 9}, {everywhere_.get(), 50, 1}}, 4);
  EXPECT_THAT(pieces_of_calls(),
              ElementsAre(ElementsAre(std::array{0, 1, 0}, std::array{2, 3, 1}),
                          ElementsAre(std::array{5, 4, 0}),
                          ElementsAre(std::array{9, 2, 0}, std::array{50, 1, 2})));
}

TEST_F(LayerOpsTest, AFormatThatTheBackendDoesNotRoundToIsLeftToTheProduct) {
  compute(stacked({WeightFormat::f16}));
  backend_.rounds_ahead = nullptr;
  compute(stacked({WeightFormat::bf16}));
  EXPECT_THAT(written(), testing::Each(WeightFormat::f32));
  EXPECT_THAT(read(), testing::Each(false));
}

}  // namespace
}  // namespace tessera
