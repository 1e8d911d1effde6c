#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/request_work.h"
#include "server/http/inflate.h"
#include "server/http/listener.h"
#include "server/http/request_parser.h"
#include "server/http/transport.h"

namespace tessera {

// Signal for one waiting coroutine. Other coroutines of the same executor notify it.
class HttpSignal {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HttpSignal(const boost::asio::any_io_executor& executor) : timer_(executor) {}

  void notify();

  // Returns at once if notify() was called since the last wait, otherwise at the next notify() or
  // at `deadline`.
  boost::asio::awaitable<void> wait(Clock::time_point deadline = Clock::time_point::max());

 private:
  boost::asio::steady_timer timer_;
  bool announced_ = false;
};

// Connection of one client. Two coroutines run on one executor. read_loop() owns the reading side
// and keeps reading while an answer is produced, so that a disconnect is noticed at once. serve()
// takes requests from the bytes read, one after another, and writes the answers.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  struct Args {
    boost::asio::any_io_executor executor;        // runs all code of the connection
    std::shared_ptr<boost::asio::io_context> io;  // context of the executor
    std::unique_ptr<HttpTransport> transport;
    const HttpOptions& options;
    HttpHandler& handler;
    RequestWork& work;
    bool probes_only = false;  // answers one probe, within a short time, and closes
    std::function<void()> on_destroyed;
  };

  explicit HttpConnection(Args args);
  ~HttpConnection();

  void start();

  // Any thread. Closes after the current answer, or at once if there is none.
  void finish();

  // Any thread. Closes at once, also during an answer.
  void abort();

  // Any thread. Returns: since when the connection waits for a whole head; nothing if it has one.
  std::optional<HttpSignal::Clock::time_point> waits_since() const;

 private:
  using Clock = HttpSignal::Clock;
  enum class Received { request, refused, timed_out, no_room, nothing };
  class WakeUp;
  class TimeLimit;

  boost::asio::awaitable<void> run();
  boost::asio::awaitable<void> read_loop();
  boost::asio::awaitable<void> serve();
  boost::asio::awaitable<bool> serve_one();
  boost::asio::awaitable<Received> read_head();
  boost::asio::awaitable<Received> read_body();
  boost::asio::awaitable<bool> refuse(Received why);
  boost::asio::awaitable<bool> refuse(int status, const std::string& reason);
  boost::asio::awaitable<bool> refuse_head(const HttpReply& reply);
  boost::asio::awaitable<std::optional<NotInflated>> inflate(HttpRequest& request);
  boost::asio::awaitable<bool> answer(HttpRequest& request);
  boost::asio::awaitable<bool> answer_later(const HttpRequest& request, HttpAnswer& answer);
  boost::asio::awaitable<bool> stream(const HttpRequest& request, HttpAnswer& answer,
                                      std::string piece);
  boost::asio::awaitable<void> wait_or_ping(HttpAnswer& answer, Clock::time_point& ping_at);
  boost::asio::awaitable<bool> send(const HttpRequest& request, const HttpReply& reply, bool open);
  boost::asio::awaitable<bool> on_pool(std::string_view key_name, std::size_t bytes,
                                       std::function<void()> job);
  boost::asio::awaitable<bool> write(std::string_view bytes);
  boost::asio::awaitable<void> linger();
  void parse(bool only_head);
  void size_buffer();
  bool take_room();
  bool stays_open(const HttpRequest& request) const;
  bool close();
  bool cut_off();  // close() by a reset, for a client that does not read
  bool cut_off_unless_read();
  void note_closed();

  Args args_;
  HttpRequestParser parser_;
  std::vector<char> buffer_;  // of one read
  std::string inbox_;         // read, not yet parsed
  HttpSignal changed_;        // wakes serve(): new bytes, a disconnect, progress of an answer
  HttpSignal room_;           // wakes read_loop(): the inbox has room
  boost::asio::steady_timer limit_timer_;
  ByteBudget::Share room_for_body_;
  HttpAdmission admission_;                              // of the request that is read or answered
  std::atomic<HttpSignal::Clock::rep> waits_since_ = 0;  // 0: it has a head
  std::size_t unread_ = 0;  // unacknowledged bytes when the time limit of a write began
  bool discard_ = false;    // further input is ignored
  bool peer_gone_ = false;
  bool streaming_ = false;
  bool finishing_ = false;
  bool closed_ = false;
};

}  // namespace tessera
