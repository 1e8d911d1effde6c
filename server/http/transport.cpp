#include "server/http/transport.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

namespace tessera {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);

// Shared by plain sockets and TLS streams.
template <typename Stream>
asio::awaitable<std::size_t> read_some(Stream& stream, std::span<char> buffer) {
  const auto [error, n] =
      co_await stream.async_read_some(asio::buffer(buffer.data(), buffer.size()), kResult);
  co_return error ? 0 : n;
}

template <typename Stream>
asio::awaitable<std::size_t> write_some(Stream& stream, std::string_view bytes) {
  const auto [error, n] =
      co_await stream.async_write_some(asio::buffer(bytes.data(), bytes.size()), kResult);
  co_return error ? 0 : n;
}

std::size_t unacknowledged_of(tcp::socket& socket) {
  int bytes = 0;
  return ioctl(socket.native_handle(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

void reset_socket(tcp::socket& socket) {
  boost::system::error_code ignored;
  socket.set_option(asio::socket_base::linger(true, 0), ignored);
  socket.close(ignored);
}

class PlainTransport final : public HttpTransport {
 public:
  explicit PlainTransport(tcp::socket socket) : socket_(std::move(socket)) {}

  asio::awaitable<bool> handshake() override { co_return true; }
  asio::awaitable<std::size_t> read(std::span<char> buffer) override {
    return read_some(socket_, buffer);
  }
  asio::awaitable<std::size_t> write(std::string_view bytes) override {
    return write_some(socket_, bytes);
  }
  std::size_t unacknowledged() override { return unacknowledged_of(socket_); }

  asio::awaitable<void> finish_writing() override {
    boost::system::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    co_return;
  }

  void close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  void reset() override { reset_socket(socket_); }

 private:
  tcp::socket socket_;
};

class TlsTransport final : public HttpTransport {
 public:
  TlsTransport(tcp::socket socket, asio::ssl::context& context)
      : stream_(std::move(socket), context) {}

  asio::awaitable<bool> handshake() override {
    const auto [error] = co_await stream_.async_handshake(asio::ssl::stream_base::server, kResult);
    co_return !error;
  }

  asio::awaitable<std::size_t> read(std::span<char> buffer) override {
    return read_some(stream_, buffer);
  }
  asio::awaitable<std::size_t> write(std::string_view bytes) override {
    return write_some(stream_, bytes);
  }
  std::size_t unacknowledged() override { return unacknowledged_of(stream_.next_layer()); }

  asio::awaitable<void> finish_writing() override {
    co_await stream_.async_shutdown(kResult);  // the client's answer does not matter
  }

  void close() override {
    boost::system::error_code ignored;
    stream_.next_layer().close(ignored);
  }

  void reset() override { reset_socket(stream_.next_layer()); }

 private:
  asio::ssl::stream<tcp::socket> stream_;
};

}  // namespace

std::unique_ptr<HttpTransport> make_plain_transport(tcp::socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<HttpTransport> make_tls_transport(tcp::socket socket, asio::ssl::context& context) {
  return std::make_unique<TlsTransport>(std::move(socket), context);
}

}  // namespace tessera
