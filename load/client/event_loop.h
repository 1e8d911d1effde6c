#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "load/request/request.h"

namespace tessera::load {

// One thread with a clock. All calls and callbacks are made on the thread of run(), except post().
class EventLoop {
 public:
  virtual ~EventLoop() = default;

  // Returns: seconds since a fixed moment.
  virtual double now() const = 0;

  // Calls `action` at `time`, or at once if that is past.
  virtual void at(double time, std::function<void()> action) = 0;

  // Any thread. Calls `action` on the loop's thread.
  virtual void post(std::function<void()> action) = 0;

  // Returns: a token that keeps run() from returning, for work on other threads.
  virtual std::shared_ptr<void> keep_running() = 0;

  // Returns when nothing is pending.
  virtual void run() = 0;
};

enum class ErrorClass {
  none,
  rejected,      // 429: the server asks to come again later
  client_error,  // any other 4xx
  server_error,  // 5xx, or an error in the stream
  no_connection,
  connection_lost,  // before the first byte of the answer
  cut_short,        // the stream broke, or ended without its end mark
  malformed,        // bytes that are not of the protocol
  timed_out,
  abandoned,  // by a fault that the run injected
  killed,     // with the server's process, by a signal of the run
};
inline constexpr int kErrorClasses = 11;
std::string_view name(ErrorClass error);

struct GenerationEnd {
  ErrorClass error = ErrorClass::none;
  int status = 0;  // HTTP status, or the code of gRPC; 0: none
  std::string message{};
  std::optional<double> retry_after{};  // seconds
};

// Receives the course of one request. ended() is the last call, and comes once.
class GenerationEvents {
 public:
  virtual ~GenerationEvents() = default;
  virtual void sent() = 0;  // the whole request was handed to the system

  // `text` is not empty.
  virtual void received(std::string_view text) = 0;
  virtual void ended(const GenerationEnd& end, const Answer& answer) = 0;
};

// Misbehaviour of a client.
struct Fault {
  enum class Kind { none, close, freeze, slow, garbage };
  enum class Phase { head, body, sent, first, middle };
  Kind kind = Kind::none;
  Phase phase = Phase::sent;
};

// Sends requests.
class Generator {
 public:
  virtual ~Generator() = default;
  virtual void generate(const LoadRequest& request, const Fault& fault,
                        std::shared_ptr<GenerationEvents> events) = 0;
};

}  // namespace tessera::load
