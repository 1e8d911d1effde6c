#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "eval/lab/attention.h"
#include "eval/lab/sequence.h"
#include "models/weights/random_checkpoint.h"
#include "tests/eval/lab/golden.h"
#include "tests/models/model_runner.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera::lab {
namespace {

constexpr uint64_t kSeed = 7;

class Laboratory : public testing::TestWithParam<TinyModel> {
 protected:
  void SetUp() override {
    const TinyModel& of = GetParam();
    ASSERT_TRUE(
        write_random_checkpoint(directory_.path(), of.config, kSeed, of.type, of.shards).ok());
    ModelOptions options{.model = directory_.path(), .weights = WeightFormat::f32};
    options.context = 192;  // some methods repeat a prompt
    absl::StatusOr<std::unique_ptr<Model>> loaded = Model::load(options);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
    tokens_.resize(150);
    std::iota(tokens_.begin(), tokens_.end(), 3);
    for (int32_t& token : tokens_) token = token * 31 % of.config.vocab;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> tokens_;
};

double relative_difference(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, double{std::fabs(a[i])});
    most = std::max(most, double{std::fabs(a[i] - b[i])});
  }
  return most / largest;
}

TEST_P(Laboratory, GivesTheLogitsOfTheServedAttention) {
  const auto expected =
      ModelRunner(directory_.path(), {.isa = best_cpu_isa()}).sequence(tokens_, 64);
  const auto full = make_method("full", model_->shape());
  const std::span<const int32_t> all(tokens_);
  Sequence sequence(*model_, *full, all.first(140));
  EXPECT_LT(relative_difference(expected[139], sequence.logits()), 1e-4);
  for (size_t i = 140; i < all.size(); ++i) {
    sequence.add(all[i]);
    EXPECT_LT(relative_difference(expected[i], sequence.logits()), 1e-4) << "token " << i;
  }
}

TEST_P(Laboratory, ComputesAPromptBehindTheBeginningOfAnotherToTheSameBits) {
  std::vector<int32_t> other = tokens_;
  other.resize(100);
  other.back() = (other.back() + 1) % GetParam().config.vocab;
  const std::vector<float> alone = model_->prompt(tokens_)->logits;
  absl::StatusOr<std::unique_ptr<Model>> second =
      Model::load({.model = directory_.path(), .weights = WeightFormat::f32, .context = 160});
  ASSERT_TRUE(second.ok());
  (*second)->prompt(other);
  EXPECT_EQ((*second)->prompt(tokens_)->logits, alone);
}

TEST_P(Laboratory, MakesQueriesKeysAndValuesOfALayersInput) {
  const std::shared_ptr<const Prompt> prompt = model_->prompt(tokens_);
  for (int32_t layer = 0; layer < model_->shape().layers; ++layer) {
    const LayerPrompt& from = prompt->layers[static_cast<size_t>(layer)];
    const Model::Projected made = model_->project(layer, from.input);
    Rows queries = made.queries_before;
    Rows keys = made.keys_before;
    for (int32_t i = 0; i < prompt->size(); ++i) {
      EXPECT_EQ(relative_difference(from.keys_before.row(i), made.keys_before.row(i)), 0);
      EXPECT_EQ(relative_difference(from.values.row(i), made.values.row(i)), 0);
      model_->rotate(layer, i, queries.row(i));
      EXPECT_EQ(relative_difference(from.queries.row(i), queries.row(i)), 0);
      model_->rotate(layer, i, keys.row(i));
      EXPECT_EQ(relative_difference(from.keys.row(i), keys.row(i)), 0);
      model_->rotate_back(layer, i, keys.row(i));
      EXPECT_LT(relative_difference(from.keys_before.row(i), keys.row(i)), 1e-5);
    }
  }
}

TEST_P(Laboratory, DropsNothingWhileItComputesAPromptIfLayersLeaveAll) {
  const auto method = make_method("pyramid-infer:decay=1", model_->shape());
  const Sequence sequence(*model_, *method, std::span(tokens_).first(140));
  const std::vector<float>& full = model_->prompt(std::span(tokens_).first(140))->logits;
  EXPECT_LT(relative_difference(full, sequence.logits()), 1e-5);
}

TEST_P(Laboratory, ContinuesRowsInFewBitsNearFullAttention) {
  const auto full = make_method("full", model_->shape());
  Sequence exact(*model_, *full, std::span(tokens_).first(100));
  for (size_t i = 100; i < tokens_.size(); ++i) exact.add(tokens_[i]);
  for (const char* name :
       {"kivi:bits=8:residual=32", "kvquant:bits=8", "gear:bits=8:group=32", "mikv:bits=8",
        "zipcache:bits=8:low_bits=8:gap=20", "kvarn:key_bits=8:value_bits=8:tile=16",
        "rotatekv:bits=8", "oscar:bits=8:key_clip=1:value_clip=1:recent=16:sinks=4",
        "xquant:bits=8:group=16", "xkv:key_rank=1:value_rank=1"}) {
    const auto method = make_method(name, model_->shape());
    Sequence sequence(*model_, *method, std::span(tokens_).first(100));
    for (size_t i = 100; i < tokens_.size(); ++i) sequence.add(tokens_[i]);
    EXPECT_LT(relative_difference(exact.logits(), sequence.logits()), 0.1) << name;
  }
}

// A fork that shared a state with its origin would differ.
TEST_P(Laboratory, RunsEveryMethodOnShortPromptsAndInForks) {
  for (const MethodLine& line : methods()) {
    if (line.needs_draft) continue;
    const auto method = make_method(std::string(line.name), model_->shape());
    for (const size_t size : {1u, 7u, 33u, 60u}) {
      SCOPED_TRACE(testing::Message() << line.name << " after " << size << " tokens");
      Sequence sequence(*model_, *method, std::span(tokens_).first(size));
      for (size_t i = size; i < size + 20; ++i) sequence.add(tokens_[i]);
      Sequence fork = sequence;
      for (Sequence* each : {&sequence, &fork}) {
        for (size_t i = size + 20; i < size + 30; ++i) each->add(tokens_[i]);
        EXPECT_GT(each->bytes(), 0);
        for (const float logit : each->logits()) ASSERT_TRUE(std::isfinite(logit));
      }
      EXPECT_EQ(sequence.logits(), fork.logits());
    }
  }
}

std::vector<TinyModel> chosen_models() {
  std::vector<TinyModel> chosen;
  for (const auto& models : {tiny_models(), tiny_family_models()}) {
    for (const TinyModel& model : models) {
      for (const char* name :
           {"qwen2", "qwen3", "mistral_window", "gemma3", "mixtral", "granite"}) {
        if (model.name == name) chosen.push_back(model);
      }
    }
  }
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(Of, Laboratory, testing::ValuesIn(chosen_models()),
                         [](const auto& of) { return of.param.name; });

TEST(Attention, SumsToOneOverWhatAQuerySees) {
  const std::vector<float> row = attention_row(golden_prompt(), 1, 3, 40);
  EXPECT_EQ(row.size(), 41u);
  EXPECT_NEAR(std::accumulate(row.begin(), row.end(), 0.0), 1, 1e-6);
}

TEST(Methods, RefuseAnUnknownNumberWithThoseThatThereAre) {
  const absl::Status status =
      find_methods("snapkv:bugdet=0.1", golden_prompt().shape, false).status();
  EXPECT_EQ(status.message(),
            "--method snapkv:bugdet=0.1: has no number 'bugdet'; it has budget=0.2, kernel=5, "
            "window=32");
}

}  // namespace
}  // namespace tessera::lab
