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

#include "base/check.h"
#include "base/status_macros.h"
#include "server/base/configuration_file.h"
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
    connections_.emplace(++last_, Entry());
    return last_;
  }

  void add(uint64_t number, std::weak_ptr<HttpConnection> connection) {
    const std::lock_guard lock(mutex_);
    connections_[number].connection = std::move(connection);
  }

  void remove(uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto it = connections_.find(number);
    if (it != connections_.end()) {
      evicted_ -= it->second.evicted ? 1 : 0;
      connections_.erase(it);
    }
    changed_.notify_all();
  }

  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return connections_.size() - evicted_;
  }

  // Closes the connection that has waited longest for a request, if that is `least` or more.
  // Returns: false if there is none.
  bool evict(std::chrono::milliseconds least) {
    // Outlives the lock: the destructor of a connection calls remove().
    std::shared_ptr<HttpConnection> chosen;
    std::vector<std::shared_ptr<HttpConnection>> others;
    auto longest = HttpSignal::Clock::now() - least;
    const std::lock_guard lock(mutex_);
    Entry* evicted = nullptr;
    for (auto& [number, entry] : connections_) {
      auto connection = entry.evicted ? nullptr : entry.connection.lock();
      const auto since = connection ? connection->waits_since() : std::nullopt;
      if (since && *since <= longest) {
        longest = *since;
        evicted = &entry;
        std::swap(chosen, connection);
      }
      others.push_back(std::move(connection));
    }
    if (evicted == nullptr) {
      return false;
    }
    evicted->evicted = true;
    ++evicted_;
    chosen->abort();
    return true;
  }

  bool wait_until_empty(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return connections_.empty(); });
  }

  std::vector<std::shared_ptr<HttpConnection>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<HttpConnection>> living;
    for (const auto& [number, entry] : connections_) {
      if (auto connection = entry.connection.lock()) {
        living.push_back(std::move(connection));
      }
    }
    return living;
  }

 private:
  struct Entry {
    std::weak_ptr<HttpConnection> connection;
    bool evicted = false;  // it is being closed, and counts no more
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_ = 0;
  std::size_t evicted_ = 0;
  std::unordered_map<uint64_t, Entry> connections_;
};

// TLS 1.2 and 1.3 with forward secrecy and authenticated encryption only (RFC 9325).
constexpr const char* kTls12Ciphers = "ECDHE+AESGCM:ECDHE+CHACHA20";

absl::StatusOr<std::string> read_tls_file(std::string_view what, const std::string& path) {
  absl::StatusOr<std::string> text = read_configuration_file(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}", what, std::string(text.status().message())));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<asio::ssl::context>> make_tls(const HttpOptions& options) {
  if (options.tls_certificate.empty() && options.tls_key.empty()) {
    return nullptr;
  }
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                           asio::ssl::context::no_tlsv1_1 | asio::ssl::context::no_compression,
                       error);
  SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_RENEGOTIATION);
  TESSERA_CHECK(SSL_CTX_set_cipher_list(context->native_handle(), kTls12Ciphers) == 1,
                "OpenSSL knows ciphers with forward secrecy");
  // OpenSSL would ask at the terminal for the password of a key, and wait.
  context->set_password_callback([](std::size_t, auto) { return std::string(); }, error);
  TESSERA_ASSIGN_OR_RETURN(const std::string certificate,
                           read_tls_file("TLS certificate", options.tls_certificate));
  TESSERA_ASSIGN_OR_RETURN(const std::string key, read_tls_file("TLS key", options.tls_key));
  context->use_certificate_chain(asio::buffer(certificate), error);
  if (error) {
    return absl::InvalidArgumentError(
        fmt::format("TLS certificate '{}': {}", options.tls_certificate, error.message()));
  }
  context->use_private_key(asio::buffer(key), asio::ssl::context::pem, error);
  if (error) {
    return absl::InvalidArgumentError(
        fmt::format("TLS key '{}': {}", options.tls_key, error.message()));
  }
  return context;
}

// A client may leave bytes unacknowledged for write_timeout and this time.
constexpr std::chrono::milliseconds kVanished{10'000};

// Pause of the accept loop, if there is no room for a connection.
constexpr std::chrono::milliseconds kPause{20};

// A connection that waits for its next request for this long may be closed for a new one.
constexpr std::chrono::milliseconds kLeastWait{250};

constexpr std::chrono::seconds kWarnInterval{10};

class AsioListener final : public HttpListener {
 public:
  AsioListener(const HttpOptions& options, HttpHandler& handler, RequestWork work,
               std::shared_ptr<asio::ssl::context> tls)
      : options_(options),
        handler_(handler),
        shared_(work),
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
    asio::steady_timer pause(acceptor_.get_executor());
    while (acceptor_.is_open()) {
      // The connections for probes free themselves soon, so the loop need not watch them closely.
      bool wait = registry_->count() >= options_.max_connections + kProbeConnections &&
                  !registry_->evict(kLeastWait);
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
          // Out of file descriptors, most likely.
          wait = !registry_->evict(kLeastWait);
          warn(error.message());
        }
      }
      if (wait) {
        pause.expires_after(kPause);
        co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
      }
    }
  }

  // At most one line for each kWarnInterval.
  void warn(const std::string& reason) {
    ++failures_;
    const auto now = HttpSignal::Clock::now();
    if (now >= next_warning_) {
      spdlog::warn("HTTP cannot accept a connection: {} ({} times)", reason, failures_);
      failures_ = 0;
      next_warning_ = now + kWarnInterval;
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
    const bool full = registry_->count() >= options_.max_connections;
    const bool probes_only = full && !registry_->evict(kLeastWait);
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
        .work = shared_,
        .probes_only = probes_only,
        .on_destroyed = [registry = registry_, number] { registry->remove(number); }});
    registry_->add(number, connection);
    connection->start();
  }

  const HttpOptions options_;
  HttpHandler& handler_;
  RequestWork shared_;
  std::atomic<std::shared_ptr<asio::ssl::context>> tls_;
  std::shared_ptr<asio::io_context> io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_->get_executor()};
  tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  std::shared_ptr<Registry> registry_ = std::make_shared<Registry>();
  std::size_t failures_ = 0;  // of the accept loop, since its last warning
  HttpSignal::Clock::time_point next_warning_{};
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::start(const HttpOptions& options,
                                                                  HttpHandler& handler,
                                                                  RequestWork work) {
  TESSERA_ASSIGN_OR_RETURN(auto tls, make_tls(options));
  auto listener = std::make_unique<AsioListener>(options, handler, work, std::move(tls));
  TESSERA_RETURN_IF_ERROR(listener->listen());
  listener->serve();
  return listener;
}

}  // namespace tessera
