#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "load/client/http_loop.h"
#include "load/run/options.h"
#include "load/run/runner.h"
#include "load/run/server_metrics.h"
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
  std::string left_behind;             // see idle_violation()
  bool interrupted = false;
  double client_cpu_seconds = 0;
};

// A server that was asked about itself, and workloads that were made for it.
class LoadRun {
 public:
  // Asks the server for its model and for the length of words in tokens, and, for checked
  // workloads, for its idle answers.
  // Errors: Unavailable or NotFound (the server), InvalidArgument (a workload).
  static absl::StatusOr<std::unique_ptr<LoadRun>> prepare(const LoadOptions& options);

  // Runs the workloads once, closed or at `rate`, and waits until the server is idle again. Each
  // trial has sessions of its own, so that none finds its prompts in the server's prefix cache.
  // Errors: InvalidArgument if options.records belongs to another run.
  absl::StatusOr<Trial> trial(double rate);

  const std::string& model() const { return model_; }
  const ServerTraits& traits() const { return traits_; }

 private:
  LoadRun(const LoadOptions& options, std::unique_ptr<HttpLoop> loop)
      : options_(options), loop_(std::move(loop)) {}

  absl::Status choose_generator();
  absl::Status ask_model();
  absl::Status measure_words();
  absl::Status make_mix();
  absl::Status learn_idle_answers();
  absl::StatusOr<Answer> ask(const LoadRequest& request);
  ServerReading read();
  void wait_until_idle(Trial& trial);
  RunPlan plan_at(double rate) const;

  const LoadOptions& options_;
  std::unique_ptr<HttpLoop> loop_;
  std::unique_ptr<Generator> generator_;
  std::string model_;
  ServerTraits traits_;
  bool has_metrics_ = true;
  Mix mix_;
  uint64_t trials_ = 0;
};

// Set by SIGINT: the run ends early, with a report.
extern volatile sig_atomic_t interrupted;

}  // namespace tessera::load
