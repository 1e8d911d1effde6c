#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "load/arrivals/arrivals.h"
#include "load/check/verdict.h"
#include "load/client/event_loop.h"
#include "load/record/record.h"
#include "load/run/faults.h"
#include "load/workload/workload.h"

namespace tessera::load {

// When requests start, and when the run ends.
struct RunPlan {
  std::optional<ArrivalOptions> arrivals;  // open loop; each arrival starts a session
  bool trace_times = false;                // open loop at the starts of the mix's trace
  int32_t concurrency = 1;                 // closed loop: sessions at once
  double duration = 0;                     // seconds; 0: no limit
  uint64_t requests = 0;                   // 0: no limit
  uint64_t first_session = 0;
  uint64_t first_number = 0;  // of requests; a resumed run goes on counting
  size_t max_in_flight = 8192;
  uint64_t seed = 0;
};

// Runs sessions against a server, and hands on a record of each request. Everything happens on the
// loop's thread. In the closed loop a request is intended when its client becomes free.
class Runner {
 public:
  using Sink = std::function<void(const RequestRecord&)>;

  // All arguments must outlive the runner.
  Runner(EventLoop& loop, Generator& generator, const Mix& mix, const RunPlan& plan,
         const FaultMix& faults, Sink sink);

  // Returns when every request has ended.
  void run();

  // No further request starts. Running ones end as usual.
  void stop() { stopped_ = true; }

  size_t in_flight() const { return in_flight_; }
  uint64_t started() const { return requests_; }
  bool finished() const { return arrivals_ended_ && in_flight_ == 0 && thinking_ == 0; }
  double elapsed() const { return loop_.now() - begin_; }

 private:
  class Exchange;
  struct Due {
    std::shared_ptr<Session> session;
    double intended;
  };

  void next_arrival();
  void start_session(double intended);
  void start_request(std::shared_ptr<Session> session, double intended);
  void send(std::shared_ptr<Session> session, double intended);
  void ended(Exchange& exchange, const Answer& answer);
  bool exhausted() const;

  EventLoop& loop_;
  Generator& generator_;
  const Mix& mix_;
  const RunPlan& plan_;
  const FaultMix& faults_;
  Sink sink_;
  std::optional<Arrivals> arrivals_;
  RecentKeys keys_;
  std::deque<Due> due_;  // beyond max_in_flight
  double begin_ = 0;
  uint64_t sessions_ = 0;
  uint64_t requests_ = 0;
  size_t in_flight_ = 0;
  size_t thinking_ = 0;
  bool arrivals_ended_ = false;
  bool stopped_ = false;
};

}  // namespace tessera::load
