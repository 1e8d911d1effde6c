#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

// Ageing: a request is overtaken by at most kPriorityHeadStart later arrivals for each priority
// level between them, under any load. Then it is scheduled.
TEST(Starvation, NoStreamOfUrgentWorkStarvesTheRest) {
  EngineOptions options;
  options.context = 64;
  options.max_sequences = 2;
  options.max_step_tokens = 16;
  options.max_queue = 64;
  options.kv_bytes = FakeEngine::kv_bytes(options, 4);
  FakeEngine fake(options);
  EngineRequest patient = request_of(prompt_of(30), 8);
  patient.priority = 1;
  EngineRequest urgent = request_of(prompt_of(10), 4);
  fake.submit_samples(urgent, 20);  // a backlog from the first step on
  RequestId id = 0;
  const auto sinks = fake.submit_samples(patient, 3, &id);
  RequestId last_id = id;
  const auto ended = [&] {
    return std::all_of(sinks.begin(), sinks.end(),
                       [](const auto& sink) { return sink->finish().has_value(); });
  };
  while (!ended()) {
    while (fake.engine->stats().waiting < 40 && last_id < id + 2 * kPriorityHeadStart) {
      fake.submit(urgent, &last_id);
      fake.engine->step();
    }
    ASSERT_TRUE(fake.engine->step());
    ASSERT_LT(last_id, id + kPriorityHeadStart + 200) << "it has starved";
  }
  EXPECT_GT(last_id, id + kPriorityHeadStart - 200) << "urgent work went first until then";
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->tokens(), run_alone(sample_of(patient, i), 64).tokens);
  }
}

}  // namespace
}  // namespace tessera
