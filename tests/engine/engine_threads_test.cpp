// The engine's thread against client threads. Also run under TSan.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <random>
#include <thread>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

EngineOptions busy_options() {
  EngineOptions options;
  options.context = 96;
  options.max_sequences = 6;
  options.max_step_tokens = 24;
  options.max_queue = 12;
  options.kv_bytes = FakeEngine::kv_bytes(options, 2);
  return options;
}

EngineRequest random_request(std::mt19937_64& random) {
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  EngineRequest request = request_of(prompt_of(pick(1, 60), pick(0, 50)), pick(1, 30));
  request.sampling.seed = random();
  request.priority = pick(0, 1);
  return request;
}

TEST(EngineThread, AnswersARequest) {
  FakeEngine fake(busy_options());
  fake.engine->start();
  const EngineRequest request = request_of(prompt_of(10), 5);
  const auto sink = fake.submit(request);
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
  EXPECT_EQ(sink->tokens(), run_alone(request, 96).tokens);
}

TEST(EngineThread, ServesFourClientsThatSubmitAndCancel) {
  FakeEngine fake(busy_options());
  fake.engine->start();
  std::atomic<int> accepted = 0;
  const auto client = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 150; ++i) {
      const EngineRequest request = random_request(random);
      const auto sink = std::make_shared<RecordingSink>();
      EngineRequest sent = request;
      sent.sinks = {sink};
      const auto id = fake.engine->submit(std::move(sent));
      if (!id.ok()) {
        EXPECT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted);
        std::this_thread::yield();
        continue;
      }
      ++accepted;
      const bool cancels = random() % 3 == 0;
      if (cancels) {
        fake.engine->cancel(*id);
        fake.engine->cancel(*id);
      }
      if (random() % 2 == 0) {
        continue;  // abandons the request
      }
      const Finish finish = sink->wait();
      EXPECT_EQ(sink->events_after_finish(), 0);
      if (!cancels) {
        EXPECT_EQ(sink->tokens(), run_alone(request, 96).tokens);
        EXPECT_EQ(finish.reason, FinishReason::length);
      }
      (void)fake.engine->stats();
    }
  };
  std::vector<std::thread> clients;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    clients.emplace_back(client, seed);
  }
  for (std::thread& thread : clients) {
    thread.join();
  }
  fake.engine->drain();
  while (!fake.engine->idle()) {
    std::this_thread::yield();
  }
  fake.engine->stop();
  EXPECT_GT(accepted, 0);
  EXPECT_EQ(fake.model->defect(), "");
  EXPECT_EQ(fake.engine->stats().pages_free, fake.engine->stats().pages_total);
  fake.engine->kv().check_integrity();
}

TEST(EngineThread, EveryAcceptedRequestEndsOnceWhenTheEngineStopsUnderIt) {
  for (uint64_t round = 0; round < 30; ++round) {
    FakeEngine fake(busy_options());
    fake.engine->start();
    std::vector<std::vector<std::shared_ptr<RecordingSink>>> sinks(4);
    std::vector<std::thread> clients;
    for (uint64_t i = 0; i < sinks.size(); ++i) {
      clients.emplace_back([&, i] {
        std::mt19937_64 random(round * 4 + i);
        while (true) {
          EngineRequest request = random_request(random);
          const auto sink = std::make_shared<RecordingSink>();
          request.sinks = {sink};
          const auto id = fake.engine->submit(std::move(request));
          if (id.ok()) {
            sinks[i].push_back(sink);
          } else if (id.status().code() == absl::StatusCode::kUnavailable) {
            return;
          }
        }
      });
    }
    std::thread other_stopper;
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 5));
    if (round % 2 == 0) {
      other_stopper = std::thread([&] { fake.engine->stop(); });
    }
    fake.engine->stop();
    for (std::thread& thread : clients) {
      thread.join();
    }
    if (other_stopper.joinable()) {
      other_stopper.join();
    }
    for (const auto& client : sinks) {
      for (const auto& sink : client) {
        ASSERT_TRUE(sink->finish().has_value());
        ASSERT_EQ(sink->events_after_finish(), 0);
      }
    }
    ASSERT_TRUE(fake.engine->idle());
    ASSERT_EQ(fake.engine->stats().pages_free, fake.engine->stats().pages_total);
  }
}

TEST(EngineThread, IsDestroyedWhileItWorksOrBeforeItStarted) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int round = 0; round < 50; ++round) {
    FakeEngine fake(busy_options());
    if (round % 3 != 0) {
      fake.engine->start();
    }
    for (int i = 0; i < round % 7; ++i) {
      sinks.push_back(fake.submit(request_of(prompt_of(20, i), 60)));
    }
  }
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->finish().has_value());
  }
}

TEST(EngineThread, SleepsWhenThereIsNothingToDo) {
  FakeEngine fake(busy_options());
  fake.engine->start();
  fake.submit(request_of(prompt_of(10), 5))->wait();
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double elapsed = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(elapsed, 0.15) << "of processor time, in 0.3 s without work";
}

}  // namespace
}  // namespace tessera
