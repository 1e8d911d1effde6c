// LayerOps decides which rows an op writes as a product reads them.

#include "models/decoder_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "models/config.h"
#include "models/random_checkpoint.h"
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
};
Calls calls;

// A backend that rounds rows ahead for bf16 weights alone, and computes nothing.
Backend noting_backend() {
  Backend backend{};
  backend.rounds_ahead = [](WeightFormat format) { return format == WeightFormat::bf16; };
  backend.rms_norm = [](const RmsNormArgs& args, Stream) { calls.written.push_back(args.rounded); };
  backend.silu_mul = [](const SiluMulArgs& args, Stream) { calls.written.push_back(args.rounded); };
  backend.linear = [](const LinearArgs& args, Stream) { calls.products.push_back(args); };
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

TEST_F(LayerOpsTest, RowsThatAnAdapterReadsTooAreNotRounded) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), tiny_llama_config(), 1).ok());
  write_random_adapter(directory.path() / "adapter", tiny_llama_config());
  ModelRunner runner(directory.path(), {});
  const auto adapter = runner.model().load_adapter(directory.path() / "adapter");
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const AdapterRows rows{adapter->get(), 1, 1};
  const AdaptedProduct adapted{{&rows, 1}, 1, &LoraLayer::down};
  const StackedWeight weight = stacked({WeightFormat::bf16});
  std::vector<float> numbers(1024);
  const MatrixView<float> all{numbers.data(), 2, 8, 8};
  workspace_.low_rank = {numbers.data(), 2, 8, 8};
  ops().linear_of_norm({.hidden = all, .weight = {}, .out = all}, weight, {}, all, adapted);
  ops().add_linear_of_gate(all, all, weight, {}, all, adapted);
  EXPECT_THAT(written(), ElementsAre(WeightFormat::f32, WeightFormat::f32));
  EXPECT_THAT(read(), testing::Each(false));
  // Each of the two products is followed by A and B of the second row.
  ASSERT_EQ(calls.products.size(), 6U);
  for (const size_t low_rank : {1U, 2U, 4U, 5U}) {
    EXPECT_EQ(calls.products[low_rank].in.rows, 1);
    EXPECT_EQ(calls.products[low_rank].accumulate, low_rank % 3 == 2);
  }
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
