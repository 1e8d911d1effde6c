#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/token_grammar.h"
#include "server/grammar/grammar_spec.h"

namespace tessera {

// The client of a request for a grammar.
struct GrammarClient {
  std::string name;     // whose requests take turns: Caller::turn_name()
  bool tenant = false;  // of a tenant file; otherwise one of many clients with equal rights
};

// Specs that wait to be compiled, of all clients, and their requests. Clients take turns by the CPU
// time that their grammars have used (start-time fair queueing, as WorkPool). A client may have
// half of the bytes, and half of the threads, that the others leave: so a small spec waits neither
// behind another client's slow ones nor for room. Used under one mutex.
class GrammarQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<const TokenGrammar>>)>;

  struct Waiter {
    Done done;
    Clock::time_point deadline;
  };
  // A spec of one client, and the requests that wait for it.
  struct Job {
    std::string client;
    std::string digest;
    GrammarSpec spec;
    std::vector<Waiter> waiters;
    int64_t bytes = 0;
    bool running = false;
  };
  // A request that has waited too long, and whether its spec is being compiled.
  struct Late {
    Done done;
    bool running = false;
  };

  GrammarQueue(int threads, int64_t max_bytes) : threads_(threads), max_bytes_(max_bytes) {}

  // Adds a request. It joins the client's job of the same digest, if there is one.
  // Returns: false, with `waiter` unchanged, if the client has too many bytes.
  bool add(const GrammarClient& client, const std::string& digest, const GrammarSpec& spec,
           Waiter& waiter);

  // Returns: the job whose turn it is, which now runs until end(); null if none may begin.
  Job* begin();

  // Ends a job that runs, after so much CPU time.
  // Returns: its requests.
  std::vector<Waiter> end(Job* job, std::chrono::nanoseconds used);

  // Takes the requests whose deadline has passed from their jobs.
  std::vector<Late> take_late(Clock::time_point now);

  // Returns: the first deadline of those that wait; `otherwise` if none waits.
  Clock::time_point first_deadline(Clock::time_point otherwise) const;

  // Returns: all requests that wait.
  std::vector<Waiter> take_all();

  int64_t bytes() const { return bytes_; }

  // Returns: how many requests wait, for PacedWork. A tenant counts for kFewRequests at most, so
  // that a long queue of one takes no more of the machine from the others. Any thread may read it.
  const std::atomic<int64_t>& requests() const { return requests_; }
  static constexpr int64_t kFewRequests = 4;

 private:
  struct Client {
    std::list<Job> jobs;  // in order of arrival, with those that run
    std::unordered_map<std::string, std::list<Job>::iterator> by_digest;
    bool tenant = false;
    int64_t bytes = 0;
    int64_t requests = 0;
    int running = 0;
    int64_t turn = 0;  // virtual time at which its next job starts, in nanoseconds
  };
  using Clients = std::map<std::string, Client, std::less<>>;

  static Job* first_waiting(Client& client);
  bool may_begin(const Client& client) const;
  void change_requests(Client& client, int64_t by);
  void remove(Client& client, const std::string& digest);
  void forget_idle();

  const int threads_;
  const int64_t max_bytes_;
  Clients clients_;  // those with jobs, or with a turn after now_
  int64_t bytes_ = 0;
  int running_ = 0;
  int64_t now_ = 0;  // virtual time: the start of the job that began last
  std::atomic<int64_t> requests_ = 0;
};

}  // namespace tessera
