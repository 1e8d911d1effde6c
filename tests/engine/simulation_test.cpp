// Random traffic through the real scheduler, KV accounting, sampler and engine over the fake model.
// TESSERA_SIMULATION_STEPS and TESSERA_SIMULATION_SEED change how much and which.

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::stoull(value) : otherwise;
}

// A check that aborts says which traffic it met.
volatile uint64_t running_seed = 0;
void print_running_seed(int /*signal*/) {
  std::fprintf(stderr, "TESSERA_SIMULATION_SEED=%llu\n",
               static_cast<unsigned long long>(running_seed));
}

// One engine's life: traffic, then drain or stop.
class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed), fake_(random_options()) {}

  int64_t run(int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      if (step % 256 == 0) {
        arrival_rate_ = 0.01 * pick(0, 100);
        cancel_rate_ = chance(0.5) ? 0.0005 : 0.01;
      }
      arrive();
      cancel_some();
      step_once();
      if (testing::Test::HasFailure()) {
        return step;
      }
    }
    return steps + close();
  }

  int64_t preemptions() const { return fake_.engine->stats().preemptions; }
  int64_t finished(FinishReason reason) { return finished_[reason]; }

 private:
  struct Client {
    EngineRequest request;
    std::shared_ptr<RecordingSink> sink;
    bool cancelled = false;
    size_t tokens_seen = 0;
  };

  int32_t pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }

  EngineOptions random_options() {
    EngineOptions options;
    options.context = pick(20, 160);
    options.max_sequences = pick(1, 12);
    options.max_step_tokens = options.max_sequences + pick(0, 60);
    options.max_queue = pick(1, 20);
    const int64_t least = div_ceil(options.context, FakeEngine::kPageTokens);
    options.kv_bytes = FakeEngine::arena_bytes(least + pick(0, static_cast<int32_t>(3 * least)));
    return options;
  }

  EngineRequest random_request() {
    const int32_t context = fake_.engine->options().context;
    EngineRequest request;
    const int32_t length = chance(0.2) ? context - 1 : pick(1, context / 2);
    for (int32_t i = 0; i < length; ++i) {
      request.prompt.push_back(pick(3, FakeModel::kVocab - 1));
    }
    if (chance(0.02)) {
      request.prompt.back() = FakeModel::kPoison;
    }
    request.max_tokens = chance(0.3) ? context : pick(1, 30);
    request.sampling.temperature = chance(0.5) ? 0.0f : 1.0f;
    request.sampling.seed = random_();
    request.sampling.top_k = chance(0.3) ? 5 : 0;
    request.ignore_eos = chance(0.5);
    request.priority = chance(0.7) ? 0 : pick(-2, 2);
    return request;
  }

  void arrive() {
    if (!chance(arrival_rate_)) {
      return;
    }
    for (int32_t i = pick(1, 3); i > 0; --i) {
      Client client{random_request(), std::make_shared<RecordingSink>()};
      EngineRequest request = client.request;
      request.sinks = {client.sink};
      const auto id = fake_.engine->submit(std::move(request));
      if (id.ok()) {
        clients_.emplace(*id, std::move(client));
      } else {
        ASSERT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted) << id.status();
        ASSERT_EQ(client.sink->finish(), std::nullopt);
      }
    }
  }

  void cancel_some() {
    for (auto& [id, client] : clients_) {
      if (chance(cancel_rate_)) {
        client.cancelled = true;
        fake_.engine->cancel(id);
        if (chance(0.3)) {
          fake_.engine->cancel(id);  // an impatient client
        }
      }
    }
    fake_.engine->cancel(static_cast<RequestId>(pick(0, 1 << 20)) << 32);  // nobody
  }

  // The best-ranked request that this step will find, and how far it has come.
  std::pair<RequestId, int32_t> best_before() const {
    int64_t best_rank = 0;
    RequestId best = 0;
    for (const auto& [id, client] : clients_) {
      const int64_t rank = rank_of(client.request.priority, static_cast<int64_t>(id));
      if (!client.cancelled && (best == 0 || rank < best_rank)) {
        best = id;
        best_rank = rank;
      }
    }
    for (const auto& sequence : fake_.engine->sequences()) {
      if (sequence->id() == best) {
        return {best, sequence->stored()};
      }
    }
    return {best, 0};
  }

  void step_once() {
    const auto [best, best_stored] = best_before();
    const bool ran = fake_.engine->step();
    ASSERT_EQ(ran, best != 0) << "a step runs if and only if somebody is there";
    ASSERT_EQ(fake_.model->defect(), "");
    fake_.engine->kv().check_integrity();
    check_plan();
    check_clients(best, best_stored);
    check_totals();
  }

  void check_plan() {
    int32_t tokens = 0;
    for (const StepPlan::Run& run : fake_.engine->last_plan().runs) {
      ASSERT_GT(run.count, 0);
      tokens += run.count;
    }
    ASSERT_LE(tokens, fake_.engine->options().max_step_tokens);
    ASSERT_LE(std::ssize(fake_.engine->last_plan().runs), fake_.engine->options().max_sequences);
  }

  void check_clients(RequestId best, int32_t best_stored) {
    std::map<RequestId, int32_t> stored;
    for (const auto& sequence : fake_.engine->sequences()) {
      ASSERT_FALSE(sequence->ended());
      ASSERT_TRUE(stored.emplace(sequence->id(), sequence->stored()).second);
    }
    for (auto client = clients_.begin(); client != clients_.end();) {
      const RequestId id = client->first;
      const RecordingSink& sink = *client->second.sink;
      const size_t tokens = sink.tokens().size();
      ASSERT_LE(tokens, client->second.tokens_seen + 1) << "at most one token a step";
      client->second.tokens_seen = tokens;
      ASSERT_EQ(sink.events_after_finish(), 0);
      ASSERT_NE(sink.finish().has_value(), stored.contains(id)) << "ended, or inside: not both";
      if (!sink.finish().has_value()) {
        ASSERT_FALSE(client->second.cancelled) << "cancel takes effect within one step";
        ASSERT_TRUE(id != best || stored[id] > best_stored) << "the best-ranked always progresses";
        ++client;
        continue;
      }
      check_outcome(client->second);
      client = clients_.erase(client);
    }
    ASSERT_EQ(stored.size(), clients_.size());
  }

  void check_outcome(const Client& client) {
    const Finish finish = *client.sink->finish();
    const std::vector<int32_t> tokens = client.sink->tokens();
    const Outcome alone = run_alone(client.request, fake_.engine->options().context);
    ++finished_[finish.reason];
    ASSERT_EQ(finish.prompt_tokens, std::ssize(client.request.prompt));
    ASSERT_EQ(finish.completion_tokens, std::ssize(tokens));
    ASSERT_EQ(finish.status.ok(), finish.reason != FinishReason::failed);
    if (finish.reason == FinishReason::cancelled) {
      ASSERT_TRUE(client.cancelled || closing_);
      ASSERT_LE(tokens.size(), alone.tokens.size());
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), alone.tokens.begin()));
      return;
    }
    ASSERT_EQ(finish.reason, alone.reason);
    ASSERT_EQ(tokens, alone.tokens) << "the text does not depend on what else runs";
  }

  void check_totals() {
    const EngineStats stats = fake_.engine->stats();
    const auto& sequences = fake_.engine->sequences();
    const auto running = std::count_if(sequences.begin(), sequences.end(),
                                       [](const auto& s) { return s->running(); });
    ASSERT_EQ(stats.running, running);
    ASSERT_EQ(stats.waiting, std::ssize(sequences) - running);
    ASSERT_EQ(fake_.engine->idle(), sequences.empty());
    int64_t held = 0;
    for (const auto& sequence : sequences) {
      held += sequence->running() ? fake_.engine->kv().slot_pages(sequence->slot()) : 0;
    }
    ASSERT_EQ(stats.pages_free + held, stats.pages_total);
  }

  // Either way every request ends and every page is free.
  int64_t close() {
    int64_t steps = 0;
    closing_ = true;
    fake_.engine->drain();
    EXPECT_EQ(fake_.engine->submit(random_request_with_sink()).status().code(),
              absl::StatusCode::kUnavailable);
    if (chance(0.5)) {
      for (; !clients_.empty() && !testing::Test::HasFailure(); ++steps) {
        step_once();
      }
    }
    fake_.engine->stop();
    for (const auto& [id, client] : clients_) {
      EXPECT_TRUE(client.sink->finish().has_value());
      check_outcome(client);
    }
    fake_.engine->kv().check_integrity();
    EXPECT_TRUE(fake_.engine->idle());
    EXPECT_EQ(fake_.engine->stats().pages_free, fake_.engine->stats().pages_total);
    return steps;
  }

  EngineRequest random_request_with_sink() {
    EngineRequest request = random_request();
    request.sinks = {std::make_shared<RecordingSink>()};
    return request;
  }

  std::mt19937_64 random_;
  FakeEngine fake_;
  double arrival_rate_ = 0;  // bursts a step
  double cancel_rate_ = 0;   // of a request, a step
  bool closing_ = false;
  std::map<RequestId, Client> clients_;  // inside
  std::map<FinishReason, int64_t> finished_;
};

TEST(EngineSimulation, KeepsEveryInvariantAfterEveryStep) {
  const int64_t wanted = static_cast<int64_t>(setting("TESSERA_SIMULATION_STEPS", 100'000));
  uint64_t seed = setting("TESSERA_SIMULATION_SEED", 1);
  std::signal(SIGABRT, print_running_seed);
  std::map<FinishReason, int64_t> finished;
  int64_t preemptions = 0;
  for (int64_t steps = 0; steps < wanted; ++seed) {
    SCOPED_TRACE("TESSERA_SIMULATION_SEED=" + std::to_string(seed));
    running_seed = seed;
    Simulation simulation(seed);
    steps += simulation.run(1000);
    preemptions += simulation.preemptions();
    for (const FinishReason reason : {FinishReason::stop, FinishReason::length,
                                      FinishReason::cancelled, FinishReason::failed}) {
      finished[reason] += simulation.finished(reason);
    }
    ASSERT_FALSE(HasFailure());
  }
  std::printf("%lld preemptions; stop %lld, length %lld, cancelled %lld, failed %lld\n",
              static_cast<long long>(preemptions),
              static_cast<long long>(finished[FinishReason::stop]),
              static_cast<long long>(finished[FinishReason::length]),
              static_cast<long long>(finished[FinishReason::cancelled]),
              static_cast<long long>(finished[FinishReason::failed]));
  EXPECT_GT(preemptions, 0) << "the traffic exhausts the pages";
  for (const auto& [reason, count] : finished) {
    EXPECT_GT(count, 0) << "the traffic ends in every way: " << static_cast<int>(reason);
  }
}

}  // namespace
}  // namespace tessera
