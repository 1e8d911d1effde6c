#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace tessera {

// The bytes of one connection, plain or TLS. One read and one write may be under way at once, all
// on the socket's executor; close() and reset() end both.
class HttpTransport {
 public:
  virtual ~HttpTransport() = default;

  virtual boost::asio::awaitable<bool> handshake() = 0;

  // How many bytes came; 0: the client has closed its side, or the connection is broken.
  virtual boost::asio::awaitable<std::size_t> read(std::span<char> buffer) = 0;

  // All of `bytes`. False: the connection is broken.
  virtual boost::asio::awaitable<bool> write(std::string_view bytes) = 0;

  // Tells the client that nothing follows. Reading goes on.
  virtual boost::asio::awaitable<void> finish_writing() = 0;

  // The client still gets what was written, if it reads it.
  virtual void close() = 0;

  // Drops what was written: for a client that does not read.
  virtual void reset() = 0;
};

std::unique_ptr<HttpTransport> make_plain_transport(boost::asio::ip::tcp::socket socket);

// `context` must outlive the transport.
std::unique_ptr<HttpTransport> make_tls_transport(boost::asio::ip::tcp::socket socket,
                                                  boost::asio::ssl::context& context);

}  // namespace tessera
