#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace tessera {

// Byte stream of one connection, plain or TLS. One read and one write may be in progress at a time.
// All calls are made on the socket's executor. close() and reset() end both operations.
class HttpTransport {
 public:
  virtual ~HttpTransport() = default;

  // Returns: false if TLS could not be set up.
  virtual boost::asio::awaitable<bool> handshake() = 0;

  // Returns: number of bytes read; 0 if the client has closed its side, or the connection is
  // broken.
  virtual boost::asio::awaitable<std::size_t> read(std::span<char> buffer) = 0;

  // Writes some of `bytes`, at least one.
  // Returns: number of bytes written; 0 if the connection is broken.
  virtual boost::asio::awaitable<std::size_t> write(std::string_view bytes) = 0;

  // Returns: bytes written that the client has not acknowledged yet.
  virtual std::size_t unacknowledged() = 0;

  // Signals the end of output to the client. Reading continues.
  virtual boost::asio::awaitable<void> finish_writing() = 0;

  // Closes the socket. Bytes already written are still delivered if the client reads them.
  virtual void close() = 0;

  // Closes the socket and drops unsent bytes, for a client that does not read.
  virtual void reset() = 0;
};

std::unique_ptr<HttpTransport> make_plain_transport(boost::asio::ip::tcp::socket socket);

// `context` is used in this call only: the OpenSSL object keeps its own reference.
std::unique_ptr<HttpTransport> make_tls_transport(boost::asio::ip::tcp::socket socket,
                                                  boost::asio::ssl::context& context);

}  // namespace tessera
