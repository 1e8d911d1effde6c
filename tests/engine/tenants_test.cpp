// Several tenants on one engine over the fake model. Time counts in tokens computed, so the results
// do not depend on the machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <utility>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

constexpr int32_t kContext = 256;

EngineOptions options_of(int32_t slots) {
  EngineOptions options;
  options.context = kContext;
  options.max_sequences = slots;
  options.max_step_tokens = 64;
  options.max_queue = 1024;
  return options;
}

EngineRequest request_of_tenant(int32_t id, int32_t share, int32_t prompt, int32_t answer) {
  static int32_t first = 0;
  EngineRequest request = request_of(prompt_of(prompt, ++first), answer);
  request.tenant = {.id = id, .share = share};
  request.cache.use = false;  // prompt_of() repeats itself
  return request;
}

// Tenants that each keep a number of requests in the engine, and the tokens that each received.
class Load {
 public:
  explicit Load(const EngineOptions& options) : fake_(options) {}

  struct Client {
    EngineRequest request;
    int32_t depth = 0;  // requests kept inside
  };
  void add(const Client& client) { clients_.push_back({client, {}, 0}); }

  void run(int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      for (State& state : clients_) {
        while (std::ssize(state.sinks) < state.client.depth) {
          state.sinks.push_back(fake_.submit(state.client.request));
        }
      }
      ASSERT_TRUE(fake_.engine->step());
      for (const StepPlan::Run& run : fake_.engine->last_plan().runs) {
        computed_ += run.count;
      }
      for (State& state : clients_) {
        std::erase_if(state.sinks, [&](const auto& sink) {
          if (sink->finish().has_value()) {
            state.served += sink->finish()->prompt_tokens + sink->finish()->completion_tokens;
          }
          return sink->finish().has_value();
        });
      }
    }
  }

  int64_t served(size_t client) const { return clients_[client].served; }
  int64_t computed() const { return computed_; }
  FakeEngine& fake() { return fake_; }

 private:
  struct State {
    Client client;
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    int64_t served = 0;
  };
  FakeEngine fake_;
  std::vector<State> clients_;
  int64_t computed_ = 0;
};

TEST(Tenants, ReceiveTokensInProportionToTheirShares) {
  for (const int32_t slots : {4, 16}) {
    Load load(options_of(slots));
    load.add({request_of_tenant(1, 3, 40, 20), 60});
    load.add({request_of_tenant(2, 1, 40, 20), 60});
    load.run(6000);
    const double ratio = static_cast<double>(load.served(0)) / static_cast<double>(load.served(1));
    EXPECT_NEAR(ratio, 3, 0.15) << slots << " slots";
  }
}

TEST(Tenants, CountTokensAndNotRequests) {
  Load load(options_of(8));
  load.add({request_of_tenant(1, 1, 10, 4), 100});
  load.add({request_of_tenant(2, 1, 150, 50), 100});
  load.run(6000);
  const double ratio = static_cast<double>(load.served(0)) / static_cast<double>(load.served(1));
  EXPECT_NEAR(ratio, 1, 0.1);
}

TEST(Tenants, GainNothingByMoreRequestsOrBetterPriorities) {
  Load load(options_of(8));
  EngineRequest urgent = request_of_tenant(1, 1, 40, 20);
  urgent.priority = -1000;
  load.add({urgent, 400});
  load.add({request_of_tenant(2, 1, 40, 20), 20});
  load.run(6000);
  const double ratio = static_cast<double>(load.served(0)) / static_cast<double>(load.served(1));
  EXPECT_NEAR(ratio, 1, 0.1);
}

TEST(Tenants, TakeTheWholeEngineWhileOthersAreIdle) {
  Load alone(options_of(8));
  alone.add({request_of_tenant(0, 1, 40, 20), 60});
  alone.run(2000);
  Load shared(options_of(8));
  shared.add({request_of_tenant(1, 1, 40, 20), 60});
  shared.run(2000);
  EXPECT_EQ(shared.computed(), alone.computed());
}

TEST(Tenants, DoNotSaveUpTimeThatTheyDidNotUse) {
  Load load(options_of(8));
  load.add({request_of_tenant(1, 1, 40, 20), 60});
  load.run(5000);
  const int64_t before = load.served(0);
  load.add({request_of_tenant(2, 1, 40, 20), 60});
  load.run(3000);
  // The one that returns is ahead by its credit and by its sequences in the slots.
  const int64_t lead = load.served(1) - (load.served(0) - before);
  EXPECT_LE(lead, 4 * kContext + 2 * 8 * 60);
  EXPECT_GT(load.served(0) - before, 0);
}

// Steps from submission to the first token of a small request, in the middle of other work.
int64_t steps_to_first_token(Load& load, const EngineRequest& request) {
  const auto sink = load.fake().submit(request);
  for (int64_t steps = 1; steps < 10'000; ++steps) {
    load.run(1);
    if (!sink->tokens().empty()) {
      return steps;
    }
  }
  return -1;
}

TEST(Tenants, WaitForNoSlotOfATenantThatTakesMoreThanItsShare) {
  Load load(options_of(8));
  load.add({request_of_tenant(1, 1, 20, 200), 400});  // a slot becomes free every 25 steps
  load.run(1000);
  for (int i = 0; i < 5; ++i) {
    EXPECT_LE(steps_to_first_token(load, request_of_tenant(2, 1, 20, 5)), 2);
    load.run(97);
  }
  EXPECT_GT(load.fake().engine->stats().preemptions, 0);
}

TEST(Tenants, WithinTheirSharesPreemptNobody) {
  Load load(options_of(8));
  load.add({request_of_tenant(1, 1, 20, 50), 40});
  load.add({request_of_tenant(2, 1, 20, 50), 40});
  load.run(500);
  const int64_t before = load.fake().engine->stats().preemptions;
  load.run(3000);
  EXPECT_EQ(load.fake().engine->stats().preemptions, before);
}

// Many tenants come and go. Each arrival is ahead of a tenant that always waits, but only by its
// credit.
TEST(Tenants, DoNotStarveOneThatWaitsByArrivingOneAfterAnother) {
  Load load(options_of(2));
  load.add({request_of_tenant(1, 1, 40, 20), 4});
  std::vector<std::shared_ptr<RecordingSink>> others;
  int32_t next = 0;
  for (int step = 0; step < 6000; ++step) {
    if (step % 10 == 0 && others.size() < 400) {
      others.push_back(load.fake().submit(request_of_tenant(2 + next++ % 20, 1, 40, 20)));
    }
    std::erase_if(others, [](const auto& sink) { return sink->finish().has_value(); });
    load.run(1);
  }
  // 21 tenants, of which one always waits: its share is a 21st of the tokens at least.
  EXPECT_GT(load.served(0), load.computed() / 21 / 2);
}

// Time of a step on a machine whose weights cost as much to read as `weights` tokens to compute.
int64_t cost_of_step(const StepPlan& plan, int64_t weights = 16) {
  int64_t tokens = weights;
  for (const StepPlan::Run& run : plan.runs) {
    tokens += run.count;
  }
  return plan.runs.empty() ? 1 : tokens;
}

struct Latency {
  double to_first_token = 0;  // means, in units of cost_of_step
  double to_end = 0;
};

// Latencies of a tenant within its share while another one, of the same share, offers `times` of
// its own. Both send requests at random times.
Latency latency_beside(double times) {
  EngineOptions options = options_of(16);
  FakeEngine fake(options);
  std::mt19937_64 random(7);
  // With all slots in use a step decodes 16 tokens, prefills 32 and ends 0.8 requests. It costs 64.
  // So a request costs 80, and half of the engine is one each 160. The second tenant uses half of
  // that.
  const double share_interval = 160;
  struct Sent {
    std::shared_ptr<RecordingSink> sink;
    double at = 0;
    bool first = false;
  };
  std::vector<Sent> sent;
  std::vector<std::shared_ptr<RecordingSink>> others;
  Latency total;
  double now = 0;
  double next_own = 0;
  double next_other = 0;
  int64_t ended = 0;
  while (ended < 400) {
    for (; next_own <= now;
         next_own += std::exponential_distribution<>(0.5 / share_interval)(random)) {
      sent.push_back({fake.submit(request_of_tenant(2, 1, 40, 20)), next_own});
    }
    std::erase_if(others, [](const auto& sink) { return sink->finish().has_value(); });
    for (; next_other <= now;
         next_other += std::exponential_distribution<>(times / share_interval)(random)) {
      if (others.size() < 250) {  // its part of the queue
        others.push_back(fake.submit(request_of_tenant(1, 1, 40, 20)));
      }
    }
    now = fake.engine->step() ? now + static_cast<double>(cost_of_step(fake.engine->last_plan()))
                              : std::max(now, std::min(next_own, next_other));
    std::erase_if(sent, [&](Sent& one) {
      if (!one.first && !one.sink->tokens().empty()) {
        one.first = true;
        total.to_first_token += now - one.at;
      }
      if (one.sink->finish().has_value()) {
        total.to_end += now - one.at;
        ++ended;
      }
      return one.sink->finish().has_value();
    });
  }
  return {total.to_first_token / 400, total.to_end / 400};
}

// With the load of 1.5 shares the first tenant takes all that the second one leaves. More load
// makes its queue longer, but not the second one's latency. With less load, slots are free and
// steps are shorter: a first token takes 1.25 times as long at 100 as at 1, the mean of six seeds.
TEST(Tenants, CostAnotherAtMostATenthOfItsLatencyAtAHundredTimesTheirShare) {
  std::printf("times its share   first token   whole request\n");
  std::map<double, Latency> of;
  for (const double times : {0.001, 1.0, 1.5, 100.0}) {
    of[times] = latency_beside(times);
    std::printf("%15.3f %13.0f %15.0f\n", times, of[times].to_first_token, of[times].to_end);
  }
  EXPECT_LE(of[100].to_first_token, 1.1 * of[1.5].to_first_token);
  EXPECT_LE(of[100].to_end, 1.1 * of[1.5].to_end);
  EXPECT_LE(of[100].to_first_token, 1.3 * of[1].to_first_token);
}

// Requests of two tenants with equal shares, and how many the first of them has at a time.
struct Mix {
  const char* name;
  int32_t own_prompt, own_answer, other_prompt, other_answer, own_requests;
  int32_t pause = 1;  // most steps until a client sends its next request
  int32_t step_tokens = 64;
  int64_t weights = 16;  // see cost_of_step()
};

// A client with one request at a time, which sends the next one after a pause.
struct Client {
  std::shared_ptr<RecordingSink> sink;
  double at = 0;
  bool first = false;
  int32_t pause = 0;  // steps until it sends
};

// Mean latencies of the first tenant's requests while the other has `others` at a time.
Latency latency_of(const Mix& mix, size_t others) {
  constexpr int kEarly = 50;  // left out: the tenants' clocks are not apart yet
  constexpr int kCounted = 60;
  EngineOptions options = options_of(8);
  options.max_queue = 2048;
  options.max_step_tokens = mix.step_tokens;
  FakeEngine fake(options);
  std::mt19937_64 random(11);
  std::vector<Client> own(static_cast<size_t>(mix.own_requests));
  std::vector<Client> other(others);
  const auto send = [&](std::vector<Client>& clients, const EngineRequest& request, double now) {
    for (Client& client : clients) {
      if (client.sink == nullptr && client.pause-- == 0) {
        client = {};
        client.sink = fake.submit(request);
        client.at = now;
      }
    }
  };
  Latency total;
  double now = 0;
  int ended = 0;
  while (ended < kEarly + kCounted) {
    send(own, request_of_tenant(2, 1, mix.own_prompt, mix.own_answer), now);
    send(other, request_of_tenant(1, 1, mix.other_prompt, mix.other_answer), now);
    const bool ran = fake.engine->step();
    now += ran ? static_cast<double>(cost_of_step(fake.engine->last_plan(), mix.weights)) : 1;
    for (Client& client : own) {
      if (client.sink != nullptr && !client.first && !client.sink->tokens().empty()) {
        client.first = true;
        total.to_first_token += ended < kEarly ? 0 : (now - client.at) / kCounted;
      }
      if (client.sink != nullptr && client.sink->finish().has_value()) {
        total.to_end += ended < kEarly ? 0 : (now - client.at) / kCounted;
        client = {};
        client.pause = std::uniform_int_distribution<>(1, mix.pause)(random);
        ++ended;
      }
    }
    for (Client& client : other) {
      if (client.sink != nullptr && client.sink->finish().has_value()) {
        client = {};
        client.pause = std::uniform_int_distribution<>(1, mix.pause)(random);
      }
    }
  }
  return total;
}

// Each has its half of the 8 slots, and then the other one a hundred times as many requests.
TEST(Tenants, CostAnotherAtMostATenthWithAHundredTimesTheRequestsOfItsSlots) {
  std::printf("%-32s first token, 4 and 400    whole request, 4 and 400\n", "");
  for (const Mix& mix :
       {Mix{"the same requests", 40, 20, 40, 20, 4}, Mix{"beside long prompts", 40, 20, 200, 5, 4},
        Mix{"long answers", 10, 100, 40, 20, 4},
        Mix{"one answer beside long prompts", 10, 100, 200, 5, 1},
        Mix{"prompts in one step", 108, 100, 108, 100, 4, 3, 512, 0},
        Mix{"all clients in lockstep", 108, 100, 108, 100, 4, 1, 512, 0}}) {
    const Latency share = latency_of(mix, 4);
    const Latency flood = latency_of(mix, 400);
    std::printf("%-32s %11.0f %11.0f %14.0f %11.0f\n", mix.name, share.to_first_token,
                flood.to_first_token, share.to_end, flood.to_end);
    EXPECT_LE(flood.to_end, 1.1 * share.to_end) << mix.name;
    EXPECT_LE(flood.to_first_token, 1.25 * share.to_first_token) << mix.name;
  }
}

// A step has 64 tokens. Beside one request of a tenant that is behind, the prompts of another one
// get 32 of them, and decodes are as many as there are slots.
TEST(Tenants, DelayAnothersTokensByTheirShareOfAStep) {
  const Latency flood = latency_of({"", 10, 100, 200, 5, 1}, 40);
  EXPECT_LE(flood.to_end, 101 * (16 + 32 + 8));
  EXPECT_LE(flood.to_first_token, 2 * (16 + 64));
}

TEST(Tenants, PinNoMoreTokensThanTheirQuota) {
  EngineOptions options = options_of(4);
  options.kv_bytes = FakeEngine::kv_bytes(options, 40);
  FakeEngine fake(options);
  const int32_t block = fake.engine->stats().prefix_block_tokens;
  ASSERT_GT(block, 0);
  const auto pin = [&](int32_t tenant, int32_t first) {
    EngineRequest request = request_of(prompt_of(2 * block + 1, first), 1);
    request.tenant = {.id = tenant, .share = 1, .pin_tokens = 2 * block};
    request.cache_salt = std::to_string(tenant);
    request.cache.pin = true;
    fake.submit(request);
    fake.step_until_idle();
    return fake.engine->stats().cache.pinned_blocks;
  };
  EXPECT_EQ(pin(1, 0), 2);
  EXPECT_EQ(pin(1, 0), 2) << "the same path is pinned once";
  EXPECT_EQ(pin(1, 1), 2) << "the quota is used up";
  EXPECT_EQ(pin(2, 1), 4) << "by this tenant only";
}

}  // namespace
}  // namespace tessera
