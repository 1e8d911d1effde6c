#include "load/run/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <queue>

#include "load/run/faults.h"
#include "load/run/server_process.h"
#include "load/run/sweep.h"
#include "load/stats/measures.h"

namespace tessera::load {
namespace {

// A loop in virtual time.
class FakeLoop final : public EventLoop {
 public:
  double now() const override { return now_; }
  void at(double time, std::function<void()> action) override {
    events_.push({std::max(time, now_), count_++, std::move(action)});
  }
  void post(std::function<void()> action) override { at(now_, std::move(action)); }
  std::shared_ptr<void> keep_running() override { return nullptr; }
  void run() override {
    while (!events_.empty()) {
      const Event next = events_.top();
      events_.pop();
      now_ = next.time;
      next.action();
    }
  }

 private:
  struct Event {
    double time;
    int64_t order;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };
  std::priority_queue<Event> events_;
  double now_ = 100;
  int64_t count_ = 0;
};

// A server that works on one request at a time, `seconds` for each.
class SerialServer final : public Generator {
 public:
  SerialServer(FakeLoop& loop, double seconds) : loop_(loop), seconds_(seconds) {}

  void generate(const LoadRequest& /*request*/, const Fault& /*fault*/,
                std::shared_ptr<GenerationEvents> events) override {
    most = std::max(most, ++running_);
    events->sent();
    free_ = std::max(free_, loop_.now()) + seconds_;
    loop_.at(free_, [this, events] {
      --running_;
      events->received("word");
      Answer answer;
      answer.text = "word";
      answer.finish_reason = "stop";
      answer.usage = ReportedUsage{.prompt_tokens = 1, .completion_tokens = 1};
      events->ended({}, answer);
    });
  }

  int most = 0;

 private:
  FakeLoop& loop_;
  double seconds_;
  double free_ = 0;
  int running_ = 0;
};

std::vector<RequestRecord> run(const RunPlan& plan, double seconds,
                               const std::string& spec = "chat", int* most = nullptr) {
  FakeLoop loop;
  SerialServer server(loop, seconds);
  Mix mix;
  mix.add(std::move(make_workload(*WorkloadSpec::parse(spec), {}).value()), 1);
  std::vector<RequestRecord> records;
  const FaultMix faults;
  Runner runner(loop, server, mix, plan, faults,
                [&](const RequestRecord& record) { records.push_back(record); });
  runner.run();
  EXPECT_TRUE(runner.finished());
  if (most != nullptr) *most = server.most;
  return records;
}

RunPlan open_loop(double rate, uint64_t requests) {
  RunPlan plan;
  plan.arrivals = ArrivalOptions{.process = ArrivalProcess::constant, .rate = rate};
  plan.requests = requests;
  return plan;
}

TEST(Runner, OpenLoopsStartOnTimeHoweverSlowTheServer) {
  const auto records = run(open_loop(10, 20), 0.5);
  ASSERT_EQ(records.size(), 20u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_NEAR(records[i].intended, 0.1 * static_cast<double>(i), 1e-9);
    EXPECT_NEAR(records[i].sent, records[i].intended, 1e-9);
    EXPECT_NEAR(records[i].end, 0.5 * static_cast<double>(i + 1), 1e-9);
  }
}

// With one request in flight, later ones wait in the client. Their wait belongs to their latency.
TEST(Runner, LatencyCountsFromTheIntendedStart) {
  RunPlan plan = open_loop(10, 20);
  plan.max_in_flight = 1;
  const auto records = run(plan, 0.5);
  EXPECT_NEAR(records[19].e2e(), 0.5 * 20 - 1.9, 1e-9);
  EXPECT_NEAR(records[19].ttft(), records[19].e2e(), 1e-9);
  EXPECT_NEAR(records[19].sent - records[19].intended, records[19].e2e() - 0.5, 1e-9);
}

TEST(Runner, ClosedLoopsKeepTheirConcurrency) {
  RunPlan plan;
  plan.concurrency = 4;
  plan.requests = 40;
  int most = 0;
  const auto records = run(plan, 0.25, "chat", &most);
  EXPECT_EQ(records.size(), 40u);
  EXPECT_EQ(most, 4);
  EXPECT_NEAR(records.back().end, 10, 1e-6);
}

TEST(Runner, TheDurationEndsArrivalsAndNotRequests) {
  RunPlan plan = open_loop(10, 0);
  plan.duration = 1;
  const auto records = run(plan, 0.5);
  EXPECT_EQ(records.size(), 10u);
  EXPECT_NEAR(records.back().end, 5, 1e-9);
}

TEST(Runner, TurnsFollowEachOtherAfterThinking) {
  RunPlan plan;
  plan.concurrency = 1;
  plan.requests = 3;
  const auto records = run(plan, 0.5, "turns:turns=3:think=2");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[2].turn, 2);
  EXPECT_GT(records[1].intended, records[0].end);
  EXPECT_NEAR(records[1].sent, records[1].intended, 1e-9);
}

TEST(Runner, ASessionRepeatsAlone) {
  RunPlan plan = open_loop(10, 6);
  const auto all = run(plan, 0.1, "recall");
  plan.first_session = 4;
  plan.requests = 1;
  const auto alone = run(plan, 0.1, "recall");
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0].session, all[4].session);
  EXPECT_EQ(alone[0].question, all[4].question);
  EXPECT_FALSE(alone[0].question.empty());
}

TEST(FaultMix, DrawsTheSharesThatItWasGiven) {
  const auto mix = FaultMix::parse("close@first=0.1,slow=0.2");
  ASSERT_TRUE(mix.ok()) << mix.status();
  int closed = 0, slow = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const Fault fault = mix->draw(1, i);
    closed += fault.kind == Fault::Kind::close && fault.phase == Fault::Phase::first ? 1 : 0;
    slow += fault.kind == Fault::Kind::slow ? 1 : 0;
  }
  EXPECT_NEAR(closed, 1000, 120);
  EXPECT_NEAR(slow, 2000, 150);
}

TEST(FaultMix, RefusesWhatItDoesNotKnow) {
  for (const char* wrong : {"kill=0.1", "close=0.1", "slow@first=0.1", "close@first=2",
                            "close@first=0.6,slow=0.6", "freeze@never=0.1"}) {
    EXPECT_FALSE(FaultMix::parse(wrong).ok()) << wrong;
  }
}

TEST(PlannedSignal, ParsesSignalsInOrder) {
  const auto signals = PlannedSignal::parse("KILL@20,TERM@5.5");
  ASSERT_TRUE(signals.ok()) << signals.status();
  ASSERT_EQ(signals->size(), 2u);
  EXPECT_EQ((*signals)[0].number, SIGTERM);
  EXPECT_EQ((*signals)[0].time, 5.5);
  EXPECT_EQ((*signals)[1].number, SIGKILL);
  for (const char* wrong : {"HUP@1", "KILL", "KILL@", "KILL@-1", "@1"}) {
    EXPECT_FALSE(PlannedSignal::parse(wrong).ok()) << wrong;
  }
}

TEST(ServerProcess, IsANumberOrAFileThatHoldsIt) {
  const std::string path = testing::TempDir() + "server.pid";
  std::ofstream(path) << getpid() << "\n";
  for (const std::string& place : {std::to_string(getpid()), path}) {
    const auto process = ServerProcess(place).id();
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_EQ(process->number, getpid());
    EXPECT_TRUE(is_running(*process));
    EXPECT_FALSE(is_running({process->number, process->start + 1}));  // another one of this number
    EXPECT_GT(ServerProcess(place).resident_bytes().value_or(0), 1 << 20);
  }
  for (const char* wrong : {"/no/such/file", "0", "1", "-5", "999999999"}) {
    EXPECT_FALSE(ServerProcess(wrong).id().ok()) << wrong;
    EXPECT_FALSE(ServerProcess(wrong).resident_bytes().has_value()) << wrong;
  }
}

TEST(BisectRate, FindsTheLimitWithinItsPrecision) {
  const auto below = [](double limit) {
    return [limit](double rate) -> absl::StatusOr<bool> { return rate <= limit; };
  };
  const auto sweep = bisect_rate(1, 100, below(17));
  ASSERT_TRUE(sweep.ok());
  EXPECT_LE(sweep->highest, 17);
  EXPECT_GE(sweep->highest * (1 + kSweepPrecision), 17);
  EXPECT_LE(sweep->points.size(), 10u);
  EXPECT_EQ(bisect_rate(1, 100, below(0.5))->highest, 0);
  EXPECT_EQ(bisect_rate(1, 100, below(200))->highest, 100);
}

}  // namespace
}  // namespace tessera::load
