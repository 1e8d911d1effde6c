#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/base/paced_work.h"

namespace tessera {

// Threads for work that grows with a request: parsing, templates, tokenizing, printing. The threads
// of HTTP and gRPC only move bytes.
//
// Clients are told apart by the names of their API keys, so there are few. Each has its own queues,
// and they take turns by the bytes that their jobs had so far (start-time fair queueing: Goyal et
// al., SIGCOMM 1996, section 2). So a client with much work does not delay one with little. Of one
// client the oldest job is first, but one thread takes short jobs only. Long jobs are paced: they
// do not delay the engine's steps. So are the short jobs of a client whose short jobs have lately
// used more CPU time than a thirty-second of the engine's cores: many of them are long work too.
class WorkPool {
 public:
  struct Options {
    std::size_t threads = 2;           // at least 2: one is for short jobs only
    std::size_t max_jobs = 16'384;     // jobs that wait; more are refused
    std::size_t long_bytes = 1 << 16;  // a job of more bytes is long
  };

  // engine: paces the long jobs (PacedWork); its targets must outlive this.
  explicit WorkPool(const Options& options, const EngineLoad& engine = {});
  ~WorkPool();  // runs the jobs that wait
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Any thread; does not block. `key_name`: of the client. `bytes`: size of the input, by which
  // turns are counted. The job must not throw.
  // Returns: false, without keeping the job, if too many wait.
  bool submit(std::string_view key_name, std::size_t bytes, std::function<void()> job);

 private:
  using Clock = std::chrono::steady_clock;

  struct Job {
    uint64_t number = 0;  // in the order of arrival
    std::size_t bytes = 0;
    std::function<void()> run;
    bool paced = false;  // set when it begins
  };
  struct Client {
    std::deque<Job> short_jobs;
    std::deque<Job> long_jobs;
    uint64_t turn = 0;  // virtual time at which its next job starts
    // CPU time that short jobs have used, less what the time since then allows (a leaky bucket).
    std::chrono::nanoseconds used{0};
    Clock::time_point used_at;
  };
  using Clients = std::map<std::string, Client, std::less<>>;

  bool is_long(const Job& job) const { return job.bytes > options_.long_bytes; }
  void run(bool short_only);
  void leak(Client& client, Clock::time_point now) const;
  void add_used(const std::string& name, std::chrono::nanoseconds used);
  Clients::iterator next(bool short_only);
  Job take(Clients::iterator client, bool short_only);

  const Options options_;
  const EngineLoad engine_;
  std::mutex mutex_;  // guards the fields below, except threads_
  std::condition_variable changed_;
  Clients clients_;  // those with jobs, with a turn after now_, or with CPU time in `used`
  std::size_t jobs_ = 0;
  uint64_t last_number_ = 0;
  uint64_t now_ = 0;  // virtual time: the start of the job that began last
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera
