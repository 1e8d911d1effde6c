#include "server/http/listener.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/status_macros.h"
#include "server/http/connection.h"

namespace tessera {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Open connections. The only state that the listener's threads share.
class Registry {
 public:
  uint64_t reserve() {
    const std::lock_guard lock(mutex_);
    connections_.emplace(++last_, std::weak_ptr<HttpConnection>());
    return last_;
  }

  void add(uint64_t number, std::weak_ptr<HttpConnection> connection) {
    const std::lock_guard lock(mutex_);
    connections_[number] = std::move(connection);
  }

  void remove(uint64_t number) {
    const std::lock_guard lock(mutex_);
    connections_.erase(number);
    changed_.notify_all();
  }

  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return connections_.size();
  }

  bool wait_until_empty(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return connections_.empty(); });
  }

  std::vector<std::shared_ptr<HttpConnection>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<HttpConnection>> living;
    for (const auto& [number, weak] : connections_) {
      if (auto connection = weak.lock()) {
        living.push_back(std::move(connection));
      }
    }
    return living;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, std::weak_ptr<HttpConnection>> connections_;
};

absl::StatusOr<std::shared_ptr<asio::ssl::context>> make_tls(const HttpOptions& options) {
  if (options.tls_certificate.empty() && options.tls_key.empty()) {
    return nullptr;
  }
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                           asio::ssl::context::no_tlsv1_1,
                       error);
  context->use_certificate_chain_file(options.tls_certificate, error);
  if (error) {
    return absl::InvalidArgumentError(
        fmt::format("TLS certificate '{}': {}", options.tls_certificate, error.message()));
  }
  context->use_private_key_file(options.tls_key, asio::ssl::context::pem, error);
  if (error) {
    return absl::InvalidArgumentError(
        fmt::format("TLS key '{}': {}", options.tls_key, error.message()));
  }
  return context;
}

// A client may leave bytes unacknowledged for write_timeout and this time.
constexpr std::chrono::milliseconds kVanished{10'000};

class AsioListener final : public HttpListener {
 public:
  AsioListener(const HttpOptions& options, HttpHandler& handler,
               std::shared_ptr<asio::ssl::context> tls)
      : options_(options),
        handler_(handler),
        tls_(std::move(tls)),
        io_(std::make_shared<asio::io_context>(options.threads)),
        acceptor_(asio::make_strand(*io_)) {}

  ~AsioListener() override { stop(); }

  absl::Status listen() {
    error_code error;
    const auto address = asio::ip::make_address(options_.address, error);
    if (error) {
      return absl::InvalidArgumentError(
          fmt::format("HTTP address '{}' is not a numeric IP address", options_.address));
    }
    const tcp::endpoint endpoint(address, options_.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) {
      acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
      acceptor_.bind(endpoint, error);
    }
    if (!error) {
      acceptor_.listen(asio::socket_base::max_listen_connections, error);
    }
    if (error) {
      return absl::UnavailableError(fmt::format("HTTP cannot listen on {} port {}: {}",
                                                options_.address, options_.port, error.message()));
    }
    port_ = acceptor_.local_endpoint().port();
    return absl::OkStatus();
  }

  void serve() {
    asio::co_spawn(acceptor_.get_executor(), accept_loop(), asio::detached);
    for (int32_t i = 0; i < options_.threads; ++i) {
      threads_.emplace_back([this] { io_->run(); });
    }
  }

  absl::Status reload_tls() override {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<asio::ssl::context> tls, make_tls(options_));
    tls_ = std::move(tls);
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }
  std::size_t connections() const override { return registry_->count(); }

  void stop_accepting() override {
    if (threads_.empty()) {
      return;
    }
    std::promise<void> closed;
    asio::post(acceptor_.get_executor(), [&] {
      error_code ignored;
      acceptor_.close(ignored);
      closed.set_value();
    });
    closed.get_future().wait();
    for (const auto& connection : registry_->all()) {
      connection->finish();
    }
  }

  bool drain(std::chrono::milliseconds timeout) override {
    stop_accepting();
    return registry_->wait_until_empty(timeout);
  }

  void stop() override {
    stop_accepting();
    for (const auto& connection : registry_->all()) {
      connection->abort();
    }
    work_.reset();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

 private:
  asio::awaitable<void> accept_loop() {
    constexpr std::chrono::milliseconds kPause{20};
    asio::steady_timer pause(acceptor_.get_executor());
    while (acceptor_.is_open()) {
      bool wait = registry_->count() >= options_.max_connections;
      if (!wait) {
        const asio::any_io_executor executor = asio::make_strand(*io_);
        auto [error, socket] =
            co_await acceptor_.async_accept(executor, asio::as_tuple(asio::use_awaitable));
        if (!acceptor_.is_open()) {
          break;
        }
        if (!error) {
          open(executor, std::move(socket));
        } else if (error != asio::error::connection_aborted) {
          spdlog::warn("HTTP cannot accept a connection: {}", error.message());
          wait = true;  // out of file descriptors, most likely
        }
      }
      if (wait) {
        pause.expires_after(kPause);
        co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
      }
    }
  }

  void open(const asio::any_io_executor& executor, tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    // Detects a client that vanished without closing while bytes for it are pending. A client that
    // is connected but does not read is closed earlier, by the connection's write_timeout.
    const auto limit = static_cast<unsigned>((options_.write_timeout + kVanished).count());
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof(limit));
    const uint64_t number = registry_->reserve();
    // Each connection keeps the OpenSSL context that it began with.
    const std::shared_ptr<asio::ssl::context> tls = tls_;
    auto connection = std::make_shared<HttpConnection>(HttpConnection::Args{
        .executor = executor,
        .io = io_,
        .transport = tls ? make_tls_transport(std::move(socket), *tls)
                         : make_plain_transport(std::move(socket)),
        .options = options_,
        .handler = handler_,
        .on_destroyed = [registry = registry_, number] { registry->remove(number); }});
    registry_->add(number, connection);
    connection->start();
  }

  const HttpOptions options_;
  HttpHandler& handler_;
  std::atomic<std::shared_ptr<asio::ssl::context>> tls_;
  std::shared_ptr<asio::io_context> io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_->get_executor()};
  tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  std::shared_ptr<Registry> registry_ = std::make_shared<Registry>();
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::start(const HttpOptions& options,
                                                                  HttpHandler& handler) {
  TESSERA_ASSIGN_OR_RETURN(auto tls, make_tls(options));
  auto listener = std::make_unique<AsioListener>(options, handler, std::move(tls));
  TESSERA_RETURN_IF_ERROR(listener->listen());
  listener->serve();
  return listener;
}

}  // namespace tessera
