// Embeddings of prompts do not depend on the other sequences of a step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/kv/kv_presets.h"
#include "nlohmann/json.hpp"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/engine_fixture.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kPooledContext = 256;

EngineOptions pooled_options(int32_t max_step_tokens, int64_t arena_pages = 0) {
  EngineOptions options;
  options.context = kPooledContext;
  options.max_sequences = 4;
  options.max_step_tokens = max_step_tokens;
  options.max_queue = 32;
  options.kv_bytes = arena_pages == 0 ? 0 : FakeEngine::kv_bytes(options, arena_pages);
  return options;
}

EngineRequest pooled(std::vector<int32_t> prompt, Pooling pooling, int32_t max_tokens = 0) {
  EngineRequest request = request_of(std::move(prompt), max_tokens);
  request.pooling = pooling;
  return request;
}

std::vector<float> hidden_after(std::vector<int32_t> tokens, size_t count) {
  std::vector<float> hidden(4);
  tokens.resize(count);
  FakeModel::hidden_after(tokens, hidden);
  return hidden;
}

// The embedding by the fake model alone.
std::vector<float> expected(const std::vector<int32_t>& prompt, Pooling pooling) {
  if (pooling != Pooling::mean) {
    return hidden_after(prompt, pooling == Pooling::cls ? 1 : prompt.size());
  }
  std::vector<double> sum(4);
  for (size_t count = 1; count <= prompt.size(); ++count) {
    const std::vector<float> hidden = hidden_after(prompt, count);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += double{hidden[i]};
    }
  }
  std::vector<float> mean;
  for (const double value : sum) {
    mean.push_back(static_cast<float>(value * (1.0 / static_cast<double>(prompt.size()))));
  }
  return mean;
}

struct PooledShape {
  std::string name;
  int32_t max_step_tokens = 0;
  int64_t arena_pages = 0;  // of each head; 0: enough for all
};

class Embedding : public testing::TestWithParam<PooledShape> {};

TEST_P(Embedding, IsThatOfThePromptAloneBesideOtherLoad) {
  FakeEngine fake(pooled_options(GetParam().max_step_tokens, GetParam().arena_pages));
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 18; ++i) {
    // Prompts of 70 to 200 tokens; in groups of three they begin alike, so that there are hits.
    EngineRequest request =
        pooled(prompt_of(70 + 7 * i, i / 3), kPoolings[(i + i / 3) % 3].pooling);
    request.max_tokens = i % 4 == 3 ? 30 : 0;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.priority = -i / 5;  // later requests preempt earlier ones
    if (i % 5 == 4) {
      request.pooling.reset();
      request.max_tokens = 40;
    }
    requests.push_back(request);
  }
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const EngineRequest& request : requests) {
    sinks.push_back(fake.submit(request));
    fake.engine->step();
  }
  fake.step_until_idle();
  EXPECT_EQ(fake.model->defect(), "");
  EXPECT_GT(fake.engine->stats().preemptions, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    EXPECT_EQ(sinks[i]->finish()->reason, FinishReason::length);
    EXPECT_EQ(sinks[i]->events_after_finish() + sinks[i]->late_prompt_events(), 0);
    EXPECT_EQ(sinks[i]->tokens(), run_alone(requests[i], kPooledContext).tokens);
    if (!requests[i].pooling.has_value()) {
      EXPECT_THAT(sinks[i]->embeddings(), IsEmpty());
    } else {
      ASSERT_THAT(sinks[i]->embeddings(), SizeIs(1));
      EXPECT_EQ(sinks[i]->embeddings()[0], expected(requests[i].prompt, *requests[i].pooling));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, Embedding,
                         testing::Values(PooledShape{"whole", 512}, PooledShape{"of7", 7},
                                         PooledShape{"of20_preempted", 20, 4}),
                         [](const auto& shape) { return shape.param.name; });

TEST(Embedding, UsesAsMuchOfACachedPrefixAsItsPoolingAllows) {
  FakeEngine fake(pooled_options(512));
  const std::vector<int32_t> prompt = prompt_of(192);
  const auto cached = [&](Pooling pooling) {
    const auto sink = fake.submit(pooled(prompt, pooling));
    fake.step_until_idle();
    EXPECT_EQ(sink->embeddings().at(0), expected(prompt, pooling));
    return sink->finish()->cached_tokens;
  };
  EXPECT_EQ(cached(Pooling::mean), 0);
  EXPECT_EQ(cached(Pooling::last), 128) << "all whole groups before the last token";
  EXPECT_EQ(cached(Pooling::mean), 0);
  EXPECT_EQ(cached(Pooling::cls), 0);
}

TEST(Embedding, FailsByNameIfStatesAreNoNumbers) {
  FakeEngine fake(pooled_options(512));
  std::vector<int32_t> prompt = prompt_of(10);
  prompt[4] = FakeModel::kPoison;
  const auto broken = fake.submit(pooled(prompt, Pooling::mean));
  const auto whole = fake.submit(pooled(prompt, Pooling::cls));
  fake.step_until_idle();
  EXPECT_EQ(broken->finish()->reason, FinishReason::failed);
  EXPECT_THAT(broken->finish()->status.message(),
              HasSubstr("hidden state 0 is nan after 5 tokens"));
  EXPECT_THAT(broken->embeddings(), IsEmpty());
  EXPECT_EQ(whole->embeddings().at(0), expected(prompt, Pooling::cls));
}

// Their norm divides by an infinite sum of squares. The answer was an embedding of zeros.
TEST(Embedding, FailsByNameIfStatesOverflow) {
  FakeEngine fake(pooled_options(512));
  std::vector<int32_t> prompt = prompt_of(10);
  prompt[3] = prompt[4] = FakeModel::kOverflow;
  const auto broken = fake.submit(pooled(prompt, Pooling::last));
  const auto whole = fake.submit(pooled(prompt, Pooling::cls));
  fake.step_until_idle();
  EXPECT_EQ(broken->finish()->reason, FinishReason::failed);
  EXPECT_THAT(broken->finish()->status.message(),
              HasSubstr("hidden state is zero after 10 tokens"));
  EXPECT_THAT(broken->embeddings(), IsEmpty());
  EXPECT_EQ(whole->embeddings().at(0), expected(prompt, Pooling::cls));
}

// transformers computed them in f32 (eval/train/golden.py). The bound is relative to the length.
TEST(Embedding, AgreesWithPyTorchForTheShippedModel) {
  const std::filesystem::path root = TESSERA_SOURCE_DIR;
  const auto golden = nlohmann::json::parse(read_file(root / "tests/golden/tessera_tiny.json"));
  ThreadPool threads{2};
  EngineOptions options;
  options.max_step_tokens = 128;
  options.kv = kKvPresetF32;
  options.context = 1024;
  options.max_sequences = 8;
  const auto engine = batching_engine_of(root / "models/checkpoints/tessera-tiny", options, 128,
                                         cpu_backend(best_cpu_isa()), threads.stream());
  for (const auto& test_case : golden["cases"]) {
    const auto ids = test_case["ids"].get<std::vector<int32_t>>();
    for (const auto& [name, pooling] :
         {std::pair("last", Pooling::last), std::pair("mean", Pooling::mean)}) {
      SCOPED_TRACE(test_case["name"].get<std::string>() + ", " + name);
      const auto sink = std::make_shared<RecordingSink>();
      EngineRequest request = pooled(ids, pooling);
      request.sinks = {sink};
      ASSERT_TRUE(engine->submit(std::move(request)).ok());
      while (engine->step()) {
      }
      const std::vector<float> found = sink->embeddings().at(0);
      const auto& of_pooling = test_case["embeddings"][name];
      const auto length = of_pooling["norm"].get<double>();
      double squares = 0;
      for (const float value : found) {
        squares += double{value} * double{value};
      }
      EXPECT_NEAR(std::sqrt(squares), length, 1e-4 * length);
      const auto strided = of_pooling["strided"].get<std::vector<double>>();
      const size_t stride = found.size() / strided.size();
      for (size_t i = 0; i < strided.size(); ++i) {
        ASSERT_NEAR(double{found[i * stride]}, strided[i], 1e-4 * length) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
