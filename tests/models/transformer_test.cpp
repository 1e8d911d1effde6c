// Compares the transformer with a plain f64 one, on random models of every kind. Also tests the
// invariances that serving relies on. Golden values of trained models are in golden_test.cpp.

#include "models/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "models/checkpoint/checkpoint.h"
#include "models/weights/random_checkpoint.h"
#include "models/weights/weights.h"
#include "tests/models/model_runner.h"
#include "tests/models/reference_llama.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

constexpr uint64_t kSeed = 20261120;

using Logits = std::vector<std::vector<float>>;

std::string isa_name(CpuIsa isa) {
  return std::string(name(isa));
}

// Returns: the max difference, relative to the largest logit.
double difference(const Logits& ours, const std::vector<std::vector<double>>& reference) {
  double largest = 0;
  double largest_logit = 0;
  for (size_t row = 0; row < ours.size(); ++row) {
    for (size_t i = 0; i < ours[row].size(); ++i) {
      largest = std::max(largest, std::fabs(double{ours[row][i]} - reference[row][i]));
      largest_logit = std::max(largest_logit, std::fabs(reference[row][i]));
    }
  }
  return largest / largest_logit;
}

class TransformerOfAKind : public testing::TestWithParam<std::tuple<CpuIsa, TinyModel>> {
 protected:
  void SetUp() override {
    const TinyModel& model = std::get<1>(GetParam());
    ASSERT_TRUE(
        write_random_checkpoint(directory_.path(), model.config, kSeed, model.type, model.shards)
            .ok());
  }
  ModelRunner runner(const ModelRunner::Options& options = {}) const {
    ModelRunner::Options own = options;
    own.isa = std::get<0>(GetParam());
    return ModelRunner(directory_.path(), own);
  }

  TemporaryDirectory directory_;
};

TEST_P(TransformerOfAKind, AgreesWithTheReference) {
  const ModelConfig& config = std::get<1>(GetParam()).config;
  const std::vector<int32_t> tokens = random_tokens(101, config.vocab, 1);
  ModelRunner model = runner();
  const double error =
      difference(model.sequence(tokens, 128), ReferenceLlama(directory_.path()).logits(tokens));
  RecordProperty("relative_difference", std::to_string(error));
  EXPECT_LT(error, 1e-5);
}

TEST_P(TransformerOfAKind, GivesTheSameBitsInChunksAndWhole) {
  const std::vector<int32_t> tokens = random_tokens(101, std::get<1>(GetParam()).config.vocab, 2);
  for (const WeightFormat weights : kWeightFormats) {
    SCOPED_TRACE(name(weights));
    ModelRunner model = runner({.weights = weights, .kv = kKvF16});
    const Logits whole = model.sequence(tokens, 128);
    for (const int32_t chunk : {1, 7, 64}) {
      SCOPED_TRACE(chunk);
      EXPECT_EQ(model.sequence(tokens, chunk), whole);
    }
  }
}

// Three sequences that grow by different pieces in the same steps, compared with each alone.
TEST_P(TransformerOfAKind, GivesTheSameBitsInABatchAndAlone) {
  const int32_t vocab = std::get<1>(GetParam()).config.vocab;
  for (const WeightFormat weights : {WeightFormat::f32, WeightFormat::int8}) {
    SCOPED_TRACE(name(weights));
    ModelRunner model = runner({.weights = weights, .kv = kKvF16, .slots = 5});
    std::vector<std::vector<int32_t>> sequences;
    std::vector<Logits> alone;
    for (uint32_t i = 0; i < 3; ++i) {
      sequences.push_back(random_tokens(60 + static_cast<int32_t>(i) * 17, vocab, 10 + i));
      alone.push_back(model.sequence(sequences.back(), 128));
    }
    model.clear(0);
    std::vector<Logits> together(3);
    std::vector<size_t> done(3);
    std::mt19937 random(3);
    while (done != std::vector<size_t>{60, 77, 94}) {
      std::vector<Piece> pieces;
      std::vector<size_t> who;
      for (const size_t i : {2u, 0u, 1u}) {
        const size_t count = std::min<size_t>(random() % 24, sequences[i].size() - done[i]);
        if (count == 0) continue;
        const auto first = sequences[i].begin() + static_cast<std::ptrdiff_t>(done[i]);
        pieces.push_back(
            {static_cast<int32_t>(i) + 1, {first, first + static_cast<std::ptrdiff_t>(count)}});
        who.push_back(i);
        done[i] += count;
      }
      if (pieces.empty()) continue;
      size_t row = 0;
      const Logits logits = model.step(pieces);
      for (size_t piece = 0; piece < pieces.size(); ++piece) {
        for (size_t i = 0; i < pieces[piece].tokens.size(); ++i) {
          together[who[piece]].push_back(logits[row++]);
        }
      }
    }
    EXPECT_EQ(together, alone);
  }
}

TEST_P(TransformerOfAKind, HoldsAsManyWeightBytesAsWereEstimated) {
  const auto& [isa, tiny] = GetParam();
  for (const WeightFormat weights : kWeightFormats) {
    EXPECT_EQ(runner({.weights = weights}).model().weight_bytes(),
              weight_bytes(tiny.config, weights, tiny.type, cpu_backend(isa)));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, TransformerOfAKind,
                         testing::Combine(testing::ValuesIn(cpu_isas()),
                                          testing::ValuesIn(all_tiny_models())),
                         [](const auto& param) {
                           return isa_name(std::get<0>(param.param)) + "_" +
                                  std::get<1>(param.param).name;
                         });

class TransformerOn : public testing::TestWithParam<CpuIsa> {};

// Max error of a logit, relative to the largest logit. Measured: f16 pages 5e-4, bf16 0.015, int8
// 0.035, int4 0.35. Random weights are the hardest case; trained ones are in golden_test.cpp.
TEST_P(TransformerOn, RoundsWithTheBoundsOfEachWeightFormat) {
  const TemporaryDirectory directory;
  ModelConfig config = tiny_llama_config();
  config.hidden = 256;
  config.ffn = 512;
  config.head_dim = 64;
  config.vocab = 512;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), config, kSeed).ok());
  const std::vector<int32_t> tokens = random_tokens(64, config.vocab, 4);
  const auto reference = ReferenceLlama(directory.path()).logits(tokens);
  const auto error = [&](WeightFormat weights, KvFormat kv) {
    ModelRunner runner(directory.path(), {.isa = GetParam(), .weights = weights, .kv = kv});
    const double found = difference(runner.sequence(tokens, 64), reference);
    RecordProperty(std::string(name(weights)) + std::to_string(kv.key_bits), std::to_string(found));
    return found;
  };
  EXPECT_LT(error(WeightFormat::f32, kKvF32), 1e-5);
  EXPECT_LT(error(WeightFormat::f32, kKvF16), 1e-3);
  EXPECT_LT(error(WeightFormat::bf16, kKvF32), 0.03);
  EXPECT_LT(error(WeightFormat::f16, kKvF32), 0.004);
  EXPECT_LT(error(WeightFormat::int8, kKvF32), 0.1);
  EXPECT_LT(error(WeightFormat::fp8, kKvF32), 0.3);
  EXPECT_LT(error(WeightFormat::int4, kKvF32), 0.6);
}

TEST_P(TransformerOn, ComputesTheWantedRowsOnlyAndInTheirOrder) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), tiny_llama_config(), kSeed).ok());
  const std::vector<int32_t> tokens = random_tokens(20, 131, 5);
  ModelRunner runner(directory.path(), {.isa = GetParam()});
  const Logits all = runner.sequence(tokens, 20);
  runner.clear(0);
  const std::vector<int32_t> rows = {19, 3, 3, 7};
  const Piece piece{0, tokens};
  const Logits some = runner.step_rows({&piece, 1}, rows);
  ASSERT_EQ(some.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(some[i], all[static_cast<size_t>(rows[i])]);
  }
  runner.clear(0);
  EXPECT_TRUE(runner.step_rows({&piece, 1}, {}).empty());
}

TEST_P(TransformerOn, ComputesLogitsInSlicesOfAStepAsInOne) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), tiny_llama_config(), kSeed).ok());
  const std::vector<int32_t> tokens = random_tokens(20, 131, 6);
  ModelRunner runner(directory.path(), {.isa = GetParam()});
  const Logits all = runner.sequence(tokens, 20);
  Logits sliced;
  for (int32_t first = 0; first < 20; first += 3) {
    std::vector<int32_t> rows;
    for (int32_t row = first; row < std::min(first + 3, 20); ++row) {
      rows.push_back(row);
    }
    std::vector<float> logits(rows.size() * 131);
    runner.model().logits(rows, {logits.data(), std::ssize(rows), 131, 131}, runner.stream());
    for (size_t row = 0; row < rows.size(); ++row) {
      const float* first_logit = logits.data() + row * 131;
      sliced.emplace_back(first_logit, first_logit + 131);
    }
  }
  EXPECT_EQ(sliced, all);
}

INSTANTIATE_TEST_SUITE_P(Cpu, TransformerOn, testing::ValuesIn(cpu_isas()),
                         [](const auto& param) { return isa_name(param.param); });

absl::StatusOr<std::unique_ptr<Transformer>> load(const std::filesystem::path& directory,
                                                  const TransformerOptions& options) {
  ThreadPool pool(1);
  return Transformer::load(directory, options, cpu_backend(CpuIsa::scalar), pool.stream());
}

TEST(Transformer, RefusesAContextBeyondTheModels) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), tiny_llama_config(), kSeed).ok());
  const auto model = load(directory.path(), {.limits = {1, 1, 193}, .max_logits_rows = 1});
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(model.status().message()),
              testing::AllOf(testing::HasSubstr("193"), testing::HasSubstr("192")));
}

// Positions beyond max_position_embeddings, for which YaRN has frequencies.
TEST(Transformer, TakesTheContextThatYarnStretches) {
  const TemporaryDirectory directory;
  ModelConfig config = tiny_llama_config();
  config.rope_scaling = {
      .kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = config.context};
  ASSERT_TRUE(write_random_checkpoint(directory.path(), config, kSeed).ok());
  EXPECT_TRUE(load(directory.path(), {.limits = {1, 1, 4 * 192}, .max_logits_rows = 1}).ok());
  const auto model = load(directory.path(), {.limits = {1, 1, 4 * 192 + 1}, .max_logits_rows = 1});
  EXPECT_THAT(std::string(model.status().message()), testing::HasSubstr("768"));
}

TEST(Transformer, RefusesEmptyLimits) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), tiny_llama_config(), kSeed).ok());
  EXPECT_FALSE(load(directory.path(), {.limits = {0, 1, 1}, .max_logits_rows = 1}).ok());
  EXPECT_FALSE(load(directory.path(), {.limits = {1, 1, 1}, .max_logits_rows = 0}).ok());
}

// CUDA has none yet.
TEST(Transformer, RefusesExpertsByNameOnABackendWithoutKernelsForThem) {
  const TemporaryDirectory directory;
  ModelConfig config = tiny_llama_config();
  config.architecture = "MixtralForCausalLM";
  config.experts = config.own_experts = 4;
  config.chosen_experts = 2;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), config, kSeed).ok());
  Backend backend = cpu_backend(CpuIsa::scalar);
  backend.name = "without experts";
  backend.expert_linear = nullptr;
  ThreadPool pool(1);
  const auto model = Transformer::load(
      directory.path(), {.limits = {1, 1, 1}, .max_logits_rows = 1}, backend, pool.stream());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(model.status().message()),
              testing::AllOf(testing::HasSubstr("MixtralForCausalLM"),
                             testing::HasSubstr("without experts"),
                             testing::HasSubstr("no kernels for a mixture of experts")));
}

TEST(Transformer, SaysThatADirectoryIsNotThere) {
  const auto model = load("/nonexistent/model", {.limits = {1, 1, 1}, .max_logits_rows = 1});
  EXPECT_EQ(model.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(model.status().message()), testing::HasSubstr("/nonexistent/model"));
}

}  // namespace
}  // namespace tessera
