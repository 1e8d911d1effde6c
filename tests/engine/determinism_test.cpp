// Contract of EngineRequest::deterministic: the same request and seed give the same text. The rest
// of the batch, the chunking of prefill and preemptions make no difference.

#include <gtest/gtest.h>

#include <random>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

constexpr int32_t kContext = 96;

class World {
 public:
  explicit World(uint64_t seed) : random_(seed), fake_(options()) {}

  // Returns: the texts of a request's samples, computed among random other requests.
  std::vector<std::vector<int32_t>> texts_of(const EngineRequest& request, size_t samples) {
    load(pick(0, 6));
    const auto sinks = fake_.submit_samples(request, samples);
    for (int step = 0; fake_.engine->step(); ++step) {
      if (step < 60) {
        load(pick(0, 1));
      }
    }
    EXPECT_EQ(fake_.model->defect(), "");
    std::vector<std::vector<int32_t>> texts;
    for (const auto& sink : sinks) {
      texts.push_back(sink->tokens());
    }
    return texts;
  }

  int64_t preemptions() const { return fake_.engine->stats().preemptions; }

 private:
  int32_t pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  EngineOptions options() {
    EngineOptions options;
    options.context = kContext;
    options.max_sequences = pick(1, 9);
    options.max_step_tokens = options.max_sequences + pick(0, 50);
    options.max_queue = 100;
    options.kv_bytes = FakeEngine::kv_bytes(options, pick(6, 14));
    return options;
  }

  void load(int32_t requests) {
    for (; requests > 0; --requests) {
      EngineRequest other = request_of(prompt_of(pick(1, 70), pick(0, 50)), pick(1, 40));
      other.priority = pick(-1, 1);
      other.sampling.seed = random_();
      if (fake_.engine->stats().waiting < 20) {
        fake_.submit_samples(other, static_cast<size_t>(pick(1, 3)));
      }
    }
  }

  std::mt19937_64 random_;
  FakeEngine fake_;
};

TEST(Determinism, HoldsInAnyCompany) {
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    EngineRequest request = request_of(prompt_of(static_cast<int32_t>(1 + random() % 60)), 30);
    request.deterministic = true;
    request.sampling.seed = random();
    request.sampling.temperature = 0.9f;
    request.sampling.top_p = 0.95f;
    request.sampling.frequency_penalty = 0.3f;
    const size_t samples = 1 + random() % 4;
    std::vector<std::vector<int32_t>> expected;
    for (size_t i = 0; i < samples; ++i) {
      expected.push_back(run_alone(sample_of(request, i), kContext).tokens);
    }
    for (int neighbours = 0; neighbours < 4; ++neighbours) {
      World world(random());
      ASSERT_EQ(world.texts_of(request, samples), expected);
      preemptions += world.preemptions();
    }
  }
  EXPECT_GT(preemptions, 100) << "memory was short";
}

}  // namespace
}  // namespace tessera
