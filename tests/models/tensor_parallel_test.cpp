// Compares a model split over ranks with the whole model. Each rank checks its own results.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "models/architectures/architecture.h"
#include "models/lora/adapter.h"
#include "models/weights/random_checkpoint.h"
#include "tests/models/golden_logits.h"
#include "tests/models/model_runner.h"
#include "tests/models/random_adapter.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"
#include "tests/on_ranks.h"

namespace tessera {
namespace {

using Logits = std::vector<std::vector<float>>;

TinyModel model_of_four_kv_heads(TinyModel model) {
  model.config = with_four_kv_heads(model.config);
  return model;
}

// Returns: the max difference, relative to the largest logit.
float difference(const Logits& a, const Logits& b) {
  float largest = 0;
  float largest_logit = 0;
  for (size_t row = 0; row < a.size(); ++row) {
    for (size_t i = 0; i < a[row].size(); ++i) {
      largest = std::max(largest, std::fabs(a[row][i] - b[row][i]));
      largest_logit = std::max(largest_logit, std::fabs(b[row][i]));
    }
  }
  return largest / largest_logit;
}

// Sums are added in another order. Logits must agree within f32 rounding, or within bf16 rounding
// if activations are rounded to bf16.
TEST(TensorParallel, LogitsAreThoseOfTheWholeModel) {
  for (const TinyModel& kind : all_tiny_models()) {
    if (kind.config.ffn % ranks().ranks() != 0) {
      continue;
    }
    SCOPED_TRACE(kind.name);
    const TinyModel model = model_of_four_kv_heads(kind);
    const TemporaryDirectory directory;
    ASSERT_TRUE(write_random_checkpoint(directory.path(), model.config, kRanksSeed, model.type,
                                        model.shards)
                    .ok());
    const std::vector<int32_t> tokens = random_tokens(101, model.config.vocab, 1);
    for (const auto& [format, bound] :
         {std::pair{WeightFormat::f32, 1e-5f}, std::pair{WeightFormat::bf16, 1e-2f}}) {
      SCOPED_TRACE(name(format));
      ModelRunner::Options options{.isa = best_cpu_isa(), .weights = format};
      const Logits whole = ModelRunner(directory.path(), options).sequence(tokens, 40);
      options.ranks = &ranks();
      const Logits split = ModelRunner(directory.path(), options).sequence(tokens, 40);
      EXPECT_LT(difference(split, whole), bound);
    }
  }
}

// B is split by rows or A by columns, as the weights beside them.
TEST(TensorParallel, AdaptersChangeLogitsAsOnTheWholeModel) {
  for (const char* name : {"llama", "phi3", "gemma3", "mixtral"}) {
    SCOPED_TRACE(name);
    const std::vector<TinyModel> models = all_tiny_models();
    const auto kind = std::ranges::find(models, name, &TinyModel::name);
    const ModelConfig config = model_of_four_kv_heads(*kind).config;
    const TemporaryDirectory directory;
    ASSERT_TRUE(write_random_checkpoint(directory.path(), config, kRanksSeed).ok());
    write_random_adapter(directory.path() / "adapter", config);
    const std::vector<int32_t> tokens = random_tokens(50, config.vocab, 1);
    std::vector<Logits> found;
    std::set<std::string> fingerprints;
    for (Communicator* const over : {static_cast<Communicator*>(nullptr), &ranks()}) {
      ModelRunner runner(directory.path(), {.isa = best_cpu_isa(), .ranks = over});
      const auto adapter = runner.model().load_adapter(directory.path() / "adapter");
      ASSERT_TRUE(adapter.ok()) << adapter.status();
      found.push_back(runner.sequence(tokens, 40, adapter->get()));
      fingerprints.insert((*adapter)->fingerprint());
    }
    EXPECT_LT(difference(found[1], found[0]), 1e-5f);
    EXPECT_EQ(fingerprints.size(), 1U);
  }
}

// Also with 24 greedy tokens. On the models' own two KV heads, so with two ranks only.
TEST(TensorParallel, TwoRanksAgreeWithTransformers) {
  if (ranks().ranks() != 2) GTEST_SKIP() << "the models have two KV heads";
  const nlohmann::json golden = golden_architectures();
  std::set<std::string> compared;
  for (const TinyModel& tiny : all_tiny_models()) {
    if (tiny.config.kv_heads % 2 != 0 || tiny.config.ffn % 2 != 0) continue;
    SCOPED_TRACE(tiny.name);
    const TemporaryDirectory directory;
    ASSERT_TRUE(
        write_random_checkpoint(directory.path(), tiny.config, 1, tiny.type, tiny.shards).ok());
    expect_golden(golden.at(tiny.name), directory.path(),
                  {.isa = best_cpu_isa(), .ranks = &ranks()});
    if (golden.at(tiny.name).contains("greedy")) compared.insert(tiny.config.architecture);
  }
  EXPECT_EQ(compared.size(), supported_architectures().size());
}

// Every rank decides from its own logits, so all ranks must have the same bits.
TEST(TensorParallel, EveryRankSeesTheSameBits) {
  const TinyModel model = model_of_four_kv_heads(tiny_models().front());
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), model.config, kRanksSeed).ok());
  ModelRunner runner(directory.path(), {.isa = best_cpu_isa(), .kv = kKvK8V4, .ranks = &ranks()});
  const Logits logits = runner.sequence(random_tokens(150, model.config.vocab, 2), 50);
  const auto count = static_cast<float>(ranks().ranks());
  for (const std::vector<float>& row : logits) {
    std::vector<float> sums = row;
    ranks().all_reduce_sum(sums, runner.stream());
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_EQ(sums[i], row[i] * count);  // exact if all are equal: rank counts are powers of two
    }
  }
}

TEST(TensorParallel, ARankHoldsItsShareOfWeightsAndHeads) {
  const TinyModel model = model_of_four_kv_heads(tiny_models().front());
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), model.config, kRanksSeed).ok());
  ModelRunner whole(directory.path(), {});
  ModelRunner split(directory.path(), {.ranks = &ranks()});
  EXPECT_EQ(split.config().heads * ranks().ranks(), whole.config().heads);
  EXPECT_EQ(split.config().kv_heads * ranks().ranks(), whole.config().kv_heads);
  EXPECT_EQ(split.config().ffn * ranks().ranks(), whole.config().ffn);
  if (ranks().ranks() > 1) {
    EXPECT_LT(split.model().weight_bytes(), whole.model().weight_bytes());
  }
}

TEST(TensorParallel, HeadsThatDoNotDivideAreRefusedByName) {
  if (ranks().ranks() < 4) {
    GTEST_SKIP() << "two KV heads divide by so few ranks";
  }
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), tiny_llama_config(), kRanksSeed).ok());
  ThreadPool threads(1);
  const auto model = Transformer::load(directory.path(), {.limits = {8, 1, 64}, .ranks = &ranks()},
                                       cpu_backend(best_cpu_isa()), threads.stream());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().message().find("2 KV heads"), std::string::npos) << model.status();
  EXPECT_NE(model.status().message().find("4 ranks"), std::string::npos) << model.status();
}

// The shipped model has two KV heads, so it runs on two ranks.
TEST(TensorParallel, TheShippedModelWritesTheSameText) {
  if (ranks().ranks() != 2) {
    GTEST_SKIP() << "it has two KV heads";
  }
  const std::filesystem::path directory =
      std::filesystem::path(TESSERA_SOURCE_DIR) / "models/checkpoints/tessera-tiny";
  const std::vector<int32_t> prompt = random_tokens(70, 256, 3);
  ModelRunner::Options options{.isa = best_cpu_isa(), .kv = kKvF16, .context = 256};
  const std::vector<int32_t> whole = ModelRunner(directory, options).greedy(prompt, 40);
  options.ranks = &ranks();
  EXPECT_EQ(ModelRunner(directory, options).greedy(prompt, 40), whole);
}

}  // namespace
}  // namespace tessera
