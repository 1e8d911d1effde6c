#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "load/client/http_loop.h"
#include "load/client/server.h"
#include "load/run/monitor.h"
#include "load/run/options.h"
#include "load/run/runner.h"
#include "load/stats/measures.h"

namespace tessera::load {

// Result of one run, or of one rate of a sweep.
struct Trial {
  explicit Trial(RunStatistics empty) : statistics(std::move(empty)) {}

  RunStatistics statistics;
  double rate = 0;  // of an open loop; 0: closed loop or trace
  ServerReading before;
  ServerReading after;
  std::vector<ServerReading> samples;  // once a second
  std::string left_behind;             // resources that the server still holds; empty: none
  bool gone = false;                   // the run ended the server's process, and no other came
  std::vector<SentSignal> signals;
  bool interrupted = false;
  double client_cpu_seconds = 0;
};

// A server that was asked about itself, and workloads that were made for it.
class LoadRun {
 public:
  // Asks the server for its models and for the length of words in tokens, and, for checked
  // workloads, for its idle answers.
  // Errors: Unavailable or NotFound (the server), InvalidArgument (a workload).
  static absl::StatusOr<std::unique_ptr<LoadRun>> prepare(const LoadOptions& options);

  // Runs the workloads once, closed or at `rate`, and waits until the server is idle again. Each
  // trial has sessions of its own, so that none finds its prompts in the server's prefix cache.
  // Errors: InvalidArgument if options.records belongs to another run; NotFound or PermissionDenied
  // if a signal could not be sent.
  absl::StatusOr<Trial> trial(double rate);

  const std::string& model() const { return model_; }
  const ServerTraits& traits() const { return traits_; }

 private:
  explicit LoadRun(const LoadOptions& options) : options_(options), loop_(HttpLoop::create()) {}

  absl::Status find_server();
  absl::Status measure_words();
  absl::Status make_mix();
  absl::Status learn_idle_answers();
  absl::StatusOr<Answer> ask(const LoadRequest& request);
  std::optional<ServerReading> read();
  absl::Status flush();
  // Returns: why the server is not as idle as before the run; empty if it is.
  std::string left_behind(Trial& trial, Monitor& monitor);
  void wait_until_idle(Trial& trial, Monitor& monitor);
  RunPlan plan_at(double rate) const;

  const LoadOptions& options_;
  std::unique_ptr<HttpLoop> loop_;
  std::unique_ptr<Server> server_;
  std::string model_;
  ServerTraits traits_;
  bool has_metrics_ = true;
  Mix mix_;
  uint64_t trials_ = 0;
};

// Set by SIGINT: the run ends early, with a report.
extern volatile sig_atomic_t interrupted;

}  // namespace tessera::load
