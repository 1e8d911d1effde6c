#pragma once

#include <vector>

#include "load/client/http_loop.h"
#include "load/run/runner.h"
#include "load/run/server_metrics.h"
#include "load/stats/measures.h"

namespace tessera::load {

// Once a second while a run lasts: reads the server's metrics, and prints the progress to stderr if
// that is a terminal. Ends the run at SIGINT.
class Monitor {
 public:
  // All arguments must outlive the monitor.
  Monitor(HttpLoop& loop, Runner& runner, const RunStatistics& statistics, bool reads_metrics);
  ~Monitor();  // erases the progress line

  void start();
  const std::vector<ServerReading>& samples() const { return samples_; }

 private:
  class Reading;

  void tick();
  void draw() const;

  HttpLoop& loop_;
  Runner& runner_;
  const RunStatistics& statistics_;
  const bool reads_metrics_;
  const bool shown_;
  std::vector<ServerReading> samples_;
  double next_ = 0;
};

}  // namespace tessera::load
