#pragma once

#include <optional>
#include <vector>

#include "load/client/server.h"
#include "load/run/runner.h"
#include "load/run/server_process.h"
#include "load/stats/measures.h"

namespace tessera::load {

// A signal that was sent to the server's process. Times are seconds after the start of the run;
// below 0: not yet.
struct SentSignal {
  int number = 0;
  ProcessId process;
  double sent = 0;
  double ended = -1;     // the process was found to have ended
  double answered = -1;  // a request that was sent after that had its answer
};

// While a run lasts, reads the server's state each second, and prints the progress to stderr if
// that is a terminal. Flushes the server's prefix cache, sends signals to its process, and ends the
// run at SIGINT.
class Monitor {
 public:
  struct Options {
    bool reads_metrics = true;
    double flush_period = 0;  // seconds between two flushes; 0: none
    std::optional<ServerProcess> process;
    std::vector<PlannedSignal> signals;  // to `process`, by ascending time
  };

  // `loop`, `server`, `runner` and `statistics` must outlive the monitor.
  Monitor(EventLoop& loop, Server& server, Runner& runner, const RunStatistics& statistics,
          Options options);
  ~Monitor();  // erases the progress line

  void start();

  // Takes a finished request.
  // Returns: true if SIGKILL of the run ended the server while it worked on it.
  bool was_killed(const RequestRecord& record);

  const std::vector<ServerReading>& samples() const { return samples_; }
  const std::vector<SentSignal>& signals() const { return sent_; }

  // Errors: NotFound or PermissionDenied if a signal could not be sent.
  const absl::Status& status() const { return status_; }

  // Notes which of the processes have ended.
  void watch_processes();

 private:
  void tick();
  void sample();
  void send_signals();
  void draw() const;

  EventLoop& loop_;
  Server& server_;
  Runner& runner_;
  const RunStatistics& statistics_;
  const Options options_;
  const bool shown_;
  std::vector<ServerReading> samples_;
  std::vector<SentSignal> sent_;
  absl::Status status_;
  double next_ = 0;
  double next_flush_ = 0;
};

}  // namespace tessera::load
