#include "load/client/http_loop.h"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::load {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using ErrorCode = boost::system::error_code;

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 16384;
constexpr size_t kSlowBytes = 64;
constexpr std::chrono::milliseconds kSlowPause{20};
constexpr int64_t kMiddleEvents = 4;

Clock::duration ticks(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

struct Connection {
  explicit Connection(asio::io_context& io) : stream(io) {}
  beast::tcp_stream stream;
  beast::flat_static_buffer<kReadBytes> buffer;
};
using ConnectionPtr = std::unique_ptr<Connection>;

// State of one call.
struct Exchange {
  HttpCall call;
  std::shared_ptr<HttpResponse> response;
  std::string bytes;      // the request as sent
  size_t head_bytes = 0;  // of them, before the body
  bool answered = false;  // a byte of the response came
  bool keep_alive = false;
};

// The connections to one server.
class AsioConnections final : public HttpConnections {
 public:
  AsioConnections(asio::io_context& io, HttpAddress address, HttpOptions options,
                  tcp::resolver::results_type endpoints)
      : io_(io),
        address_(std::move(address)),
        options_(std::move(options)),
        endpoints_(std::move(endpoints)) {}

  void call(HttpCall call, std::shared_ptr<HttpResponse> response) override {
    auto exchange = std::make_unique<Exchange>();
    exchange->bytes = print_request(call);
    exchange->head_bytes = exchange->bytes.size() - call.body.size();
    exchange->call = std::move(call);
    exchange->call.body = std::string();
    exchange->response = std::move(response);
    asio::co_spawn(io_, perform(std::move(exchange)), [](const std::exception_ptr& error) {
      if (error) std::rethrow_exception(error);
    });
  }

 private:
  std::string print_request(const HttpCall& call) const {
    std::string bytes =
        absl::StrCat(call.post ? "POST " : "GET ", address_.prefix, call.target,
                     " HTTP/1.1\r\nHost: ", address_.host, ":", address_.port, "\r\n");
    if (!options_.api_key.empty()) {
      absl::StrAppend(&bytes, "Authorization: Bearer ", options_.api_key, "\r\n");
    }
    if (call.post) {
      absl::StrAppend(
          &bytes, "Content-Type: application/json\r\nContent-Length: ", call.body.size(), "\r\n");
    }
    return absl::StrCat(bytes, "\r\n", call.body);
  }

  asio::awaitable<ErrorCode> connect(Connection& connection, bool slow) {
    ErrorCode last = asio::error::host_not_found;
    for (const auto& entry : endpoints_) {
      ErrorCode ignored;
      tcp::socket& socket = connection.stream.socket();
      socket.close(ignored);
      socket.open(entry.endpoint().protocol(), ignored);
      if (slow) {
        socket.set_option(asio::socket_base::receive_buffer_size(2048), ignored);
      }
      const auto [error] = co_await connection.stream.async_connect(entry.endpoint(), kResult);
      last = error;
      if (!error) {
        socket.set_option(tcp::no_delay(true), ignored);
        break;
      }
    }
    co_return last;
  }

  asio::awaitable<void> perform(std::unique_ptr<Exchange> exchange) {
    const bool faulty = exchange->call.fault.kind != Fault::Kind::none;
    for (bool first = true;; first = false) {
      ConnectionPtr connection;
      const bool kept = first && !faulty && !idle_.empty();
      if (kept) {
        connection = std::move(idle_.back());
        idle_.pop_back();
      } else {
        connection = std::make_unique<Connection>(io_);
      }
      connection->stream.expires_after(ticks(options_.timeout));
      if (!kept) {
        const ErrorCode error =
            co_await connect(*connection, exchange->call.fault.kind == Fault::Kind::slow);
        if (error) {
          exchange->response->ended(
              error == beast::error::timeout ? CallEnd::timed_out : CallEnd::no_connection,
              absl::StrCat("cannot connect: ", error.message()));
          co_return;
        }
      }
      if (faulty) {
        co_await misbehave(*exchange, *connection);
        co_return;
      }
      const ErrorCode error = co_await attempt(*exchange, *connection);
      const bool stale = kept && error && !exchange->answered && error != beast::error::timeout;
      if (!stale) {
        finish(*exchange, std::move(connection), error);
        co_return;
      }
    }
  }

  // Sends the request and reads the whole response.
  asio::awaitable<ErrorCode> attempt(Exchange& exchange, Connection& connection) {
    const auto [error, sent] =
        co_await asio::async_write(connection.stream, asio::buffer(exchange.bytes), kResult);
    if (error) {
      co_return error;
    }
    exchange.response->sent();
    co_return co_await receive(exchange, connection, [] { return false; });
  }

  // `stop` is asked after each piece, and ends the reading.
  template <class Stop>
  asio::awaitable<ErrorCode> receive(Exchange& exchange, Connection& connection, Stop stop) {
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    parser.eager(true);
    std::array<char, kReadBytes> piece;
    const size_t size = exchange.call.fault.kind == Fault::Kind::slow ? kSlowBytes : piece.size();
    const auto [error, n] =
        co_await http::async_read_header(connection.stream, connection.buffer, parser, kResult);
    exchange.answered = exchange.answered || connection.buffer.size() > 0 || parser.got_some();
    if (error) {
      co_return error;
    }
    exchange.answered = true;
    HttpHead head;
    head.status = static_cast<int>(parser.get().result_int());
    head.retry_after = std::string(parser.get()[http::field::retry_after]);
    head.event_stream =
        parser.get()[http::field::content_type].substr(0, 17) == "text/event-stream";
    exchange.response->head(head);
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = size;
      auto [broken, m] =
          co_await http::async_read_some(connection.stream, connection.buffer, parser, kResult);
      if (broken == http::error::need_buffer) {
        broken = {};
      }
      const size_t got = size - parser.get().body().size;
      if (got > 0) {
        exchange.response->body({piece.data(), got});
      }
      if (broken) co_return broken;
      if (stop()) co_return asio::error::operation_aborted;
      if (size == kSlowBytes) co_await pause(kSlowPause);
    }
    exchange.keep_alive = parser.get().keep_alive();
    co_return ErrorCode{};
  }

  void finish(Exchange& exchange, ConnectionPtr connection, const ErrorCode& error) {
    if (!error) {
      if (connection && exchange.keep_alive && connection->buffer.size() == 0 &&
          idle_.size() < options_.max_idle) {
        connection->stream.expires_never();
        idle_.push_back(std::move(connection));
      }
      exchange.response->ended(CallEnd::complete, "");
      return;
    }
    CallEnd end = exchange.answered ? CallEnd::broken : CallEnd::connection_lost;
    if (error == beast::error::timeout) {
      end = CallEnd::timed_out;
    } else if (error.category() == http::make_error_code(http::error::bad_version).category() &&
               error != http::error::partial_message && error != http::error::end_of_stream) {
      end = CallEnd::malformed;
    }
    exchange.response->ended(end, error.message());
  }

  asio::awaitable<void> pause(Clock::duration time) {
    asio::steady_timer timer(io_, time);
    co_await timer.async_wait(kResult);
  }

  // Plays a client that is killed, frozen or slow, or that sends no HTTP.
  asio::awaitable<void> misbehave(Exchange& exchange, Connection& connection) {
    const Fault& fault = exchange.call.fault;
    const size_t head = exchange.head_bytes;
    size_t shown = exchange.bytes.size();
    if (fault.kind == Fault::Kind::garbage) {
      exchange.bytes = absl::StrCat("\x16\x03\x01 no HTTP \r\n", exchange.bytes, "\r\n\r\n");
      shown = exchange.bytes.size();
      connection.stream.expires_after(ticks(options_.freeze));  // some servers never answer
    } else if (fault.kind != Fault::Kind::slow && fault.phase == Fault::Phase::head) {
      shown = head / 2;
    } else if (fault.kind != Fault::Kind::slow && fault.phase == Fault::Phase::body) {
      shown = (head + exchange.bytes.size()) / 2;
    }
    const auto [error, sent] = co_await asio::async_write(
        connection.stream, asio::buffer(exchange.bytes.data(), shown), kResult);
    if (!error && shown == exchange.bytes.size()) {
      exchange.response->sent();
      const bool reads = fault.kind == Fault::Kind::slow || fault.phase >= Fault::Phase::first;
      const int64_t last = fault.phase == Fault::Phase::first ? 1 : kMiddleEvents;
      if (fault.kind == Fault::Kind::garbage || reads) {
        HttpResponse& response = *exchange.response;
        const bool slow = fault.kind == Fault::Kind::slow;
        const ErrorCode end = co_await receive(exchange, connection,
                                               [&] { return !slow && response.events() >= last; });
        if (slow) {
          finish(exchange, nullptr, end);
          co_return;
        }
      }
    }
    if (fault.kind == Fault::Kind::freeze) {
      co_await pause(ticks(options_.freeze));
    }
    ErrorCode ignored;
    connection.stream.socket().set_option(asio::socket_base::linger(true, 0), ignored);
    connection.stream.socket().close(ignored);
    exchange.response->ended(CallEnd::abandoned, "");
  }

  asio::io_context& io_;
  const HttpAddress address_;
  const HttpOptions options_;
  const tcp::resolver::results_type endpoints_;
  std::vector<ConnectionPtr> idle_;
};

class AsioLoop final : public HttpLoop {
 public:
  double now() const override {
    return std::chrono::duration<double>(Clock::now() - epoch_).count();
  }

  void at(double time, std::function<void()> action) override {
    auto timer = std::make_unique<asio::steady_timer>(io_, epoch_ + ticks(time));
    asio::steady_timer& waits = *timer;
    waits.async_wait(
        [timer = std::move(timer), action = std::move(action)](const ErrorCode&) { action(); });
  }

  void post(std::function<void()> action) override { asio::post(io_, std::move(action)); }

  std::shared_ptr<void> keep_running() override {
    return std::make_shared<asio::executor_work_guard<asio::io_context::executor_type>>(
        io_.get_executor());
  }

  void run() override {
    io_.restart();
    io_.run();
  }

  absl::StatusOr<std::unique_ptr<HttpConnections>> connections(
      const HttpAddress& address, const HttpOptions& options) override {
    tcp::resolver resolver(io_);
    ErrorCode error;
    auto endpoints = resolver.resolve(address.host, address.port, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("--url: cannot resolve ", address.host, ": ", error.message()));
    }
    return std::make_unique<AsioConnections>(io_, address, options, std::move(endpoints));
  }

 private:
  const Clock::time_point epoch_ = Clock::now();
  asio::io_context io_{1};
};

}  // namespace

std::unique_ptr<HttpLoop> HttpLoop::create() {
  return std::make_unique<AsioLoop>();
}

}  // namespace tessera::load
