#pragma once

#include <vector>

#include "load/client/http_loop.h"
#include "load/run/runner.h"
#include "load/run/server_metrics.h"
#include "load/stats/measures.h"

namespace tessera::load {

// Once a second while a run lasts: reads the server's metrics, and prints the progress to stderr if
// that is a terminal. Flushes the server's prefix cache from time to time. Ends the run at SIGINT.
class Monitor {
 public:
  struct Options {
    bool reads_metrics = true;
    double flush_period = 0;  // seconds between two POSTs of /v1/cache/flush; 0: none
  };

  // `loop`, `runner` and `statistics` must outlive the monitor.
  Monitor(HttpLoop& loop, Runner& runner, const RunStatistics& statistics, const Options& options);
  ~Monitor();  // erases the progress line

  void start();
  const std::vector<ServerReading>& samples() const { return samples_; }

 private:
  class Reading;

  void tick();
  void flush();
  void draw() const;

  HttpLoop& loop_;
  Runner& runner_;
  const RunStatistics& statistics_;
  const Options options_;
  const bool shown_;
  std::vector<ServerReading> samples_;
  double next_ = 0;
  double next_flush_ = 0;
};

}  // namespace tessera::load
