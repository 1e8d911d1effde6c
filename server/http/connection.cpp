#include "server/http/connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <utility>
#include <variant>

namespace tessera {

namespace {

namespace asio = boost::asio;

// Room of the inbox beyond one head, for requests that are pipelined during an answer. Reading
// pauses while the inbox is full.
constexpr std::size_t kSentAheadBytes = 64 << 10;

// Time for a client to read the last answer before the connection is closed.
constexpr std::chrono::seconds kLinger{2};

// End of a coroutine. Our own code throws nothing, so a failure is a lack of memory or a bug.
void report(const std::exception_ptr& failure) {
  if (failure == nullptr) {
    return;
  }
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    spdlog::error("HTTP connection dropped: {}", e.what());
  }
}

}  // namespace

void HttpSignal::notify() {
  announced_ = true;
  timer_.cancel();
}

asio::awaitable<void> HttpSignal::wait(Clock::time_point deadline) {
  if (!announced_) {
    timer_.expires_at(deadline);
    co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  announced_ = false;
}

// May outlive connections and listener, because the engine may still hold it.
class HttpConnection::Waker final : public HttpWaker {
 public:
  explicit Waker(HttpConnection& connection)
      : io_(connection.args_.io),
        executor_(connection.args_.executor),
        connection_(connection.weak_from_this()) {}

  void wake() override {
    if (posted_->exchange(true)) {
      return;
    }
    asio::post(executor_, [posted = posted_, weak = connection_] {
      *posted = false;
      if (const auto connection = weak.lock()) {
        connection->changed_.notify();
      }
    });
  }

 private:
  std::shared_ptr<asio::io_context> io_;  // used by the executor; destroyed after it
  asio::any_io_executor executor_;
  std::weak_ptr<HttpConnection> connection_;
  std::shared_ptr<std::atomic<bool>> posted_ = std::make_shared<std::atomic<bool>>(false);
};

// Scoped timeout. Calls `expired` on the connection if `limit` passes before the destructor.
class HttpConnection::TimeLimit {
 public:
  using Expired = void (HttpConnection::*)();

  TimeLimit(HttpConnection& connection, std::chrono::milliseconds limit, Expired expired)
      : timer_(connection.limit_timer_) {
    timer_.expires_after(limit);
    timer_.async_wait([weak = connection.weak_from_this(), ended = ended_, expired](auto error) {
      const auto self = weak.lock();
      if (!error && !*ended && self) {
        ((*self).*expired)();
      }
    });
  }
  ~TimeLimit() {
    *ended_ = true;
    timer_.cancel();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  asio::steady_timer& timer_;
  std::shared_ptr<bool> ended_ = std::make_shared<bool>(false);
};

HttpConnection::HttpConnection(Args args)
    : args_(std::move(args)),
      parser_({args_.options.header_bytes, args_.options.body_bytes}),
      changed_(args_.executor),
      room_(args_.executor),
      limit_timer_(args_.executor) {}

HttpConnection::~HttpConnection() {
  args_.on_destroyed();
}

void HttpConnection::start() {
  asio::co_spawn(
      args_.executor, [self = shared_from_this()] { return self->run(); },
      [self = shared_from_this()](const std::exception_ptr& failure) {
        report(failure);
        self->close();
      });
}

void HttpConnection::finish() {
  asio::post(args_.executor, [self = shared_from_this()] {
    self->finishing_ = true;
    self->changed_.notify();
  });
}

void HttpConnection::abort() {
  asio::post(args_.executor, [self = shared_from_this()] { self->close(); });
}

void HttpConnection::close() {
  args_.transport->close();
  note_closed();
}

void HttpConnection::cut_off() {
  args_.transport->reset();
  note_closed();
}

void HttpConnection::note_closed() {
  closed_ = true;
  peer_gone_ = true;
  changed_.notify();
  room_.notify();
}

asio::awaitable<void> HttpConnection::run() {
  bool shaken = false;
  {
    const TimeLimit limit(*this, args_.options.header_timeout, &HttpConnection::close);
    shaken = co_await args_.transport->handshake();
  }
  if (shaken) {
    asio::co_spawn(
        args_.executor, [self = shared_from_this()] { return self->read_loop(); }, report);
    co_await serve();
    co_await linger();
  }
}

asio::awaitable<void> HttpConnection::read_loop() {
  const std::size_t limit = args_.options.header_bytes + kSentAheadBytes;
  while (!closed_) {
    if (!discard_ && inbox_.size() >= limit) {
      co_await room_.wait();
      continue;
    }
    const std::size_t n = co_await args_.transport->read(chunk_);
    if (n == 0) {
      break;
    }
    if (!discard_) {
      inbox_.append(chunk_.data(), n);
    }
    changed_.notify();
  }
  peer_gone_ = true;
  if (streaming_) {
    close();  // a write may be waiting for the client to read
  }
  changed_.notify();
}

asio::awaitable<void> HttpConnection::serve() {
  bool open = true;
  while (open) {
    switch (co_await receive()) {
      case Received::request: {
        const HttpRequest request = parser_.take();
        open = co_await answer(request);
        break;
      }
      case Received::refused:
        open = co_await refuse(parser_.refusal().status, parser_.refusal().reason);
        break;
      case Received::timed_out:
        open = co_await refuse(408, "the request did not arrive in time");
        break;
      case Received::nothing:
        open = false;
        break;
    }
  }
}

// Waits until a request is complete, refused or late, or until the connection ends.
asio::awaitable<HttpConnection::Received> HttpConnection::receive() {
  using State = HttpRequestParser::State;
  const HttpOptions& options = args_.options;
  Clock::time_point deadline = Clock::now() + options.idle_timeout;
  bool began = false, head_known = false;
  while (true) {
    if (!began && !inbox_.empty()) {
      began = true;
      deadline = Clock::now() + options.header_timeout;
    }
    inbox_.erase(0, parser_.feed(inbox_));
    room_.notify();
    if (parser_.state() == State::complete) {
      co_return Received::request;
    }
    if (parser_.state() == State::refused) {
      co_return Received::refused;
    }
    if (parser_.state() == State::body && !head_known) {
      head_known = true;
      deadline = Clock::now() + options.body_timeout;
      if (parser_.expects_continue() && inbox_.empty() &&
          !co_await write("HTTP/1.1 100 Continue\r\n\r\n")) {
        co_return Received::nothing;
      }
    }
    if (peer_gone_ || (finishing_ && !began)) {
      co_return Received::nothing;
    }
    if (Clock::now() >= deadline) {
      co_return began ? Received::timed_out : Received::nothing;
    }
    co_await changed_.wait(deadline);
  }
}

bool HttpConnection::stays_open(const HttpRequest& request) const {
  return request.keep_alive && !finishing_ && !closed_;
}

// Returns: false if the connection must be closed.
asio::awaitable<bool> HttpConnection::answer(const HttpRequest& request) {
  HttpResult result = args_.handler.handle(request, std::make_shared<Waker>(*this));
  if (auto* answer = std::get_if<std::unique_ptr<HttpAnswer>>(&result)) {
    co_return co_await answer_later(request, **answer);
  }
  const auto& reply = std::get<HttpReply>(result);
  const bool open = stays_open(request);
  std::string bytes = print_head(reply, request, open);
  if (request.method != "HEAD") {
    bytes += reply.body;
  }
  co_return co_await write(bytes) && open;
}

asio::awaitable<bool> HttpConnection::answer_later(const HttpRequest& request, HttpAnswer& answer) {
  std::optional<HttpReply> reply = answer.start();
  while (!reply) {
    if (peer_gone_) {
      co_return false;
    }
    co_await changed_.wait();
    reply = answer.start();
  }
  const bool open = stays_open(request) && (request.http_1_1 || !reply->streamed);
  std::string bytes = print_head(*reply, request, open);
  if (!reply->streamed) {
    bytes += reply->body;
  }
  if (!co_await write(bytes)) {
    co_return false;
  }
  if (!reply->streamed) {
    co_return open;
  }
  streaming_ = true;
  const bool complete = co_await stream(request, answer, std::move(reply->body));
  streaming_ = false;
  co_return complete&& open;
}

asio::awaitable<bool> HttpConnection::stream(const HttpRequest& request, HttpAnswer& answer,
                                             std::string piece) {
  bool going = true;
  while (going && !peer_gone_) {
    going = answer.more(piece);
    if (piece.empty() && going) {
      co_await changed_.wait();
      continue;
    }
    std::string bytes;
    if (!piece.empty()) {
      bytes = request.http_1_1 ? print_chunk(piece) : std::move(piece);
      piece.clear();
    }
    if (!going && request.http_1_1) {
      bytes += kLastChunk;
    }
    if (!bytes.empty() && !co_await write(bytes)) {
      co_return false;
    }
  }
  co_return !going;
}

asio::awaitable<bool> HttpConnection::refuse(int status, const std::string& reason) {
  const HttpReply reply = args_.handler.refuse(status, reason);
  co_await write(print_head(reply, HttpRequest(), false) + reply.body);
  co_return false;
}

asio::awaitable<bool> HttpConnection::write(std::string_view bytes) {
  const TimeLimit limit(*this, args_.options.write_timeout, &HttpConnection::cut_off);
  co_return co_await args_.transport->write(bytes);
}

// Closing while the client still sends would reset the connection and lose the last answer in
// flight. So this waits until the client closes too, or until kLinger has passed.
asio::awaitable<void> HttpConnection::linger() {
  discard_ = true;
  inbox_.clear();
  room_.notify();
  if (closed_ || peer_gone_) {
    co_return;
  }
  const TimeLimit limit(*this, kLinger, &HttpConnection::close);
  co_await args_.transport->finish_writing();
  while (!peer_gone_) {
    co_await changed_.wait();
  }
}

}  // namespace tessera
