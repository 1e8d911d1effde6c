#include "server/http/connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <utility>
#include <variant>

namespace tessera {

namespace {

namespace asio = boost::asio;

// Time for a client to read the last answer before the connection is closed.
constexpr std::chrono::seconds kLinger{2};

// A body of at most this size is read even if its head is refused, so that the connection stays
// usable.
constexpr std::size_t kDiscardedBytes = 16 << 10;

// A body is sent together with its head up to this size, and else apart, without a copy.
constexpr std::size_t kJoinedBytes = 64 << 10;

// Bytes that a job inflates: the first of a body, which is a short job, and each other.
constexpr std::size_t kFirstInflatedBytes = 32 << 10;
constexpr std::size_t kInflatedBytes = 256 << 10;

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
class HttpConnection::WakeUp final : public Waker {
 public:
  explicit WakeUp(HttpConnection& connection)
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

// Scoped timeout. Calls `expired` on the connection if `limit` passes before the destructor, and
// again after each further `limit` as long as it returns false.
class HttpConnection::TimeLimit {
 public:
  using Expired = bool (HttpConnection::*)();

  TimeLimit(HttpConnection& connection, std::chrono::milliseconds limit, Expired expired)
      : timer_(connection.limit_timer_) {
    wait(connection, limit, expired, ended_);
  }
  ~TimeLimit() {
    *ended_ = true;
    timer_.cancel();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  static void wait(HttpConnection& connection, std::chrono::milliseconds limit, Expired expired,
                   const std::shared_ptr<bool>& ended) {
    connection.limit_timer_.expires_after(limit);
    connection.limit_timer_.async_wait(
        [weak = connection.weak_from_this(), ended, limit, expired](auto error) {
          const auto self = weak.lock();
          if (!error && !*ended && self && !((*self).*expired)()) {
            wait(*self, limit, expired, ended);
          }
        });
  }

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

std::optional<HttpSignal::Clock::time_point> HttpConnection::waits_since() const {
  const Clock::rep since = waits_since_;
  return since == 0 ? std::nullopt : std::optional(Clock::time_point(Clock::duration(since)));
}

bool HttpConnection::close() {
  args_.transport->close();
  note_closed();
  return true;
}

bool HttpConnection::cut_off() {
  args_.transport->reset();
  note_closed();
  return true;
}

// A client that reads, however slowly, keeps its connection.
bool HttpConnection::cut_off_unless_read() {
  const std::size_t unread = args_.transport->unacknowledged();
  return std::exchange(unread_, unread) > unread ? false : cut_off();
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

asio::awaitable<void> HttpConnection::serve() {
  bool open = true;
  while (open) {
    open = co_await serve_one();
  }
}

// Returns: false if the connection must be closed.
asio::awaitable<bool> HttpConnection::serve_one() {
  admission_ = {};
  waits_since_ = Clock::now().time_since_epoch().count();
  Received received = co_await read_head();
  waits_since_ = 0;
  if (received != Received::request) {
    co_return co_await refuse(received);
  }
  auto admitted = args_.handler.admit(parser_.head());
  if (const auto* reply = std::get_if<HttpReply>(&admitted)) {
    co_return co_await refuse_head(*reply);
  }
  admission_ = std::get<HttpAdmission>(std::move(admitted));
  if (args_.probes_only && !admission_.probe) {
    co_return co_await refuse(503, "this server has too many connections: try again later");
  }
  // A request that needs no key gets no room for a body.
  if (admission_.probe &&
      parser_.content_length().value_or(kDiscardedBytes + 1) > kDiscardedBytes) {
    co_return co_await refuse(413, "requests to this path have no body");
  }
  received = co_await read_body();
  if (received != Received::request) {
    co_return co_await refuse(received);
  }
  HttpRequest request = parser_.take();
  if (!request.body.empty() && is_compressed(request.header("content-encoding"))) {
    const std::optional<NotInflated> why = co_await inflate(request);
    if (why) {
      room_for_body_.release();
      co_return co_await refuse(why->status, why->reason);
    }
  }
  const bool open = co_await answer(request);
  co_return open && !args_.probes_only;
}

bool HttpConnection::stays_open(const HttpRequest& request) const {
  return request.keep_alive && !finishing_ && !closed_;
}

// Runs `job` on the work pool.
// Returns: false if it did not run to its end, because the pool is full or memory is short.
asio::awaitable<bool> HttpConnection::on_pool(std::string_view key_name, std::size_t bytes,
                                              std::function<void()> job) {
  co_return co_await asio::async_initiate<const asio::use_awaitable_t<>&, void(bool)>(
      [this, key_name, bytes, &job](auto handler) {
        // Destroyed from its end: the handler is part of a coroutine on `io`.
        struct Waiting {
          std::shared_ptr<asio::io_context> io;
          asio::any_io_executor executor;
          asio::executor_work_guard<asio::any_io_executor> work;
          decltype(handler) resume;
        };
        const auto waiting = std::make_shared<Waiting>(Waiting{
            args_.io, args_.executor, asio::make_work_guard(args_.executor), std::move(handler)});
        const auto finish = [waiting](bool done) {
          asio::post(waiting->executor, [waiting, done] { std::move(waiting->resume)(done); });
        };
        const bool taken = args_.work.pool.submit(key_name, bytes, [job = std::move(job), finish] {
          bool done = false;
          try {
            job();
            done = true;
          } catch (const std::exception& e) {
            spdlog::error("HTTP request dropped: {}", e.what());
          }
          finish(done);
        });
        if (!taken) {
          finish(false);
        }
      },
      asio::use_awaitable);
}

// The room for the body grows to that of both forms. A job inflates no more than the bytes that it
// counts in the client's turns, because a few compressed bytes may stand for megabytes.
asio::awaitable<std::optional<NotInflated>> HttpConnection::inflate(HttpRequest& request) {
  const auto grow = [this](std::size_t bytes) { return room_for_body_.grow_to(bytes); };
  BodyInflater inflater(request.body, args_.options.body_bytes, grow);
  std::size_t bytes = kFirstInflatedBytes;
  std::size_t counted = request.body.size() + bytes;
  bool done = false;
  while (!done) {
    const auto job = [&] { done = inflater.step(bytes); };
    if (!co_await on_pool(admission_.key_name, counted, job)) {
      co_return NotInflated{503, "too many requests wait to be read: try again later"};
    }
    bytes = counted = kInflatedBytes;
  }
  co_return inflater.refusal();
}

// Returns: false if the connection must be closed.
asio::awaitable<bool> HttpConnection::answer(HttpRequest& request) {
  HttpResult result;
  const auto waker = std::make_shared<WakeUp>(*this);
  const auto handle = [&] { result = args_.handler.handle(request, admission_, waker); };
  if (!admission_.pooled) {
    handle();
  } else if (!co_await on_pool(admission_.key_name, request.body.size(), handle)) {
    co_return co_await refuse(503, "too many requests wait to be read: try again later");
  }
  std::string().swap(request.body);  // an answer may take minutes, and its room counts no body
  room_for_body_.release();
  if (auto* answer = std::get_if<std::unique_ptr<HttpAnswer>>(&result)) {
    co_return co_await answer_later(request, **answer);
  }
  const HttpReply& reply = std::get<HttpReply>(result);
  // A long reply counts until the client has it, as its request's body did.
  ByteBudget::Share room;
  if (reply.body.size() > kJoinedBytes && !admission_.probe) {
    std::optional<ByteBudget::Share> taken = args_.work.budget.take(reply.body.size());
    if (!taken) {
      co_return co_await refuse(Received::no_room);
    }
    room = *std::move(taken);
  }
  const bool open = stays_open(request);
  co_return co_await send(request, reply, open) && open;
}

asio::awaitable<bool> HttpConnection::answer_later(const HttpRequest& request, HttpAnswer& answer) {
  std::optional<HttpReply> reply;
  Clock::time_point ping_at = Clock::now() + args_.options.ping_interval;
  while (true) {
    const std::size_t bytes = answer.start_bytes();
    if (bytes == 0) {
      reply = answer.start();
    } else if (!co_await on_pool(admission_.key_name, bytes, [&] { reply = answer.start(); })) {
      co_return co_await refuse(503, "too many answers wait to be printed: try again later");
    }
    if (reply || peer_gone_) {
      break;
    }
    co_await wait_or_ping(answer, ping_at);
  }
  if (!reply) {
    co_return false;
  }
  const bool open = stays_open(request) && (request.http_1_1 || !reply->streamed);
  if (!reply->streamed) {
    co_return co_await send(request, *reply, open) && open;
  }
  if (!co_await write(print_head(*reply, request, open))) {
    co_return false;
  }
  streaming_ = true;
  const bool complete = co_await stream(request, answer, std::move(reply->body));
  streaming_ = false;
  co_return complete&& open;
}

// Sends a whole reply. Returns: false if the connection is broken.
asio::awaitable<bool> HttpConnection::send(const HttpRequest& request, const HttpReply& reply,
                                           bool open) {
  std::string bytes = print_head(reply, request, open);
  const std::string_view body = request.method == "HEAD" ? std::string_view() : reply.body;
  if (body.size() <= kJoinedBytes) {
    bytes += body;
    co_return co_await write(bytes);
  }
  if (!co_await write(bytes)) {
    co_return false;
  }
  co_return co_await write(body);
}

asio::awaitable<bool> HttpConnection::stream(const HttpRequest& request, HttpAnswer& answer,
                                             std::string piece) {
  bool going = true;
  Clock::time_point ping_at = Clock::now() + args_.options.ping_interval;
  while (going && !peer_gone_) {
    const std::size_t bytes = answer.more_bytes();
    if (bytes == 0) {
      going = answer.more(piece);
    } else if (!co_await on_pool(admission_.key_name, bytes, [&] { going = answer.more(piece); })) {
      co_return false;
    }
    if (piece.empty() && going) {
      co_await wait_or_ping(answer, ping_at);
      continue;
    }
    std::string sent;
    if (!piece.empty()) {
      sent = request.http_1_1 ? print_chunk(piece) : std::move(piece);
      piece.clear();
    }
    if (!going && request.http_1_1) {
      sent += kLastChunk;
    }
    if (!sent.empty() && !co_await write(sent)) {
      co_return false;
    }
    ping_at = Clock::now() + args_.options.ping_interval;
  }
  co_return !going;
}

// Waits for progress of an answer, at most until `ping_at`. Then it asks the answer for a ping.
asio::awaitable<void> HttpConnection::wait_or_ping(HttpAnswer& answer, Clock::time_point& ping_at) {
  co_await changed_.wait(ping_at);
  if (Clock::now() >= ping_at) {
    answer.ping();
    ping_at = Clock::now() + args_.options.ping_interval;
  }
}

// Refuses a request that was not received, if its client can get an answer.
// Returns: false, the connection must be closed.
asio::awaitable<bool> HttpConnection::refuse(Received why) {
  // A read of the body may still be going on, into memory that its room counts.
  const ByteBudget::Share room = std::exchange(room_for_body_, {});
  switch (why) {
    case Received::refused:
      co_return co_await refuse(parser_.refusal().status, parser_.refusal().reason);
    case Received::timed_out:
      co_return co_await refuse(408, "the request did not arrive in time");
    case Received::no_room:
      co_return co_await refuse(
          503,
          "the bodies and answers of other requests fill this server's memory: try again later");
    case Received::request:
    case Received::nothing:
      co_return false;
  }
  co_return false;
}

asio::awaitable<bool> HttpConnection::refuse(int status, const std::string& reason) {
  const HttpReply reply = args_.handler.refuse(status, reason, parser_.head().path, admission_);
  co_await write(print_head(reply, HttpRequest(), false) + reply.body);
  co_return false;
}

// Answers a request whose head is refused. A long body, or one whose length is not known, is left
// unread, and the connection is closed.
asio::awaitable<bool> HttpConnection::refuse_head(const HttpReply& reply) {
  const HttpRequest head = parser_.head();
  const std::size_t length = parser_.content_length().value_or(kDiscardedBytes + 1);
  bool open = stays_open(head) && !args_.probes_only && length <= kDiscardedBytes;
  if (open && parser_.state() == HttpRequestParser::State::body) {
    open = !parser_.expects_continue();
    if (open) {
      const Received rest = co_await read_body();
      open = rest == Received::request;
    }
    room_for_body_.release();
  }
  if (open) {
    parser_.take();
  }
  co_return co_await send(head, reply, open) && open;
}

// The time limit begins again with each part that the client makes room for.
asio::awaitable<bool> HttpConnection::write(std::string_view bytes) {
  while (!bytes.empty()) {
    unread_ = args_.transport->unacknowledged();
    const TimeLimit limit(*this, args_.options.write_timeout, &HttpConnection::cut_off_unless_read);
    const std::size_t n = co_await args_.transport->write(bytes);
    if (n == 0) {
      co_return false;
    }
    bytes.remove_prefix(n);
  }
  co_return true;
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
