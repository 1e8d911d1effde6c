#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera::load {

// Ways in which a StubServer misbehaves.
struct StubLies {
  int64_t honest_requests = 0;     // lies begin after so many
  bool swap_answers = false;       // gives the key of the request before
  bool stale_prefix = false;       // answers from the first prompt that began with the same words
  bool lose_token = false;         // leaves one event out, but counts it
  bool wrong_usage = false;        // counts one token too many
  bool cut_short = false;          // closes the connection in the middle of the stream
  bool no_end_mark = false;        // ends the stream without [DONE]
  bool early_empty_event = false;  // sends an event without text at once, and the text later
  bool leak_pages = false;         // /metrics says that pages stay in use
  bool change_under_load = false;  // repeats no answer
  bool not_json = false;           // sends an event that is not JSON
  bool keep_memory = false;        // keeps 1 MiB of each request
  bool hide_metrics = false;       // /metrics stops to answer
  double stall_seconds = 0;        // pause of all requests, once, after `stall_after` requests
  int64_t stall_after = -1;
  double delay_seconds = 0;  // before the first token
  double gap_seconds = 0;    // before each later one
  int64_t reject_every = 0;  // 429 with Retry-After: 1; 0: never
};

// An OpenAI-compatible server for tests, with a thread for each connection. It streams the key that
// the prompt asks for, or, for other prompts, words that depend on the prompt alone.
class StubServer {
 public:
  explicit StubServer(StubLies lies = {}, uint16_t port = 0);
  ~StubServer();
  StubServer(const StubServer&) = delete;
  StubServer& operator=(const StubServer&) = delete;

  uint16_t port() const { return port_; }
  std::string url() const;
  int64_t requests() const { return requests_; }
  int64_t connections() const { return accepted_; }

 private:
  void accept();
  void serve(int socket);
  bool answer(int socket, const std::string& head, const std::string& body);
  bool stream(int socket, const std::string& body, const StubLies& lies);
  std::string text_for(const std::string& prompt, const StubLies& lies);

  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> requests_ = 0;
  std::atomic<int64_t> accepted_ = 0;
  std::mutex mutex_;
  const StubLies lies_;
  std::string previous_answer_;
  std::map<std::string, std::string> first_answers_;  // by the beginning of a prompt
  int64_t salt_ = 0;
  std::vector<std::string> kept_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace tessera::load
