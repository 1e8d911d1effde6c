#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/handler.h"

namespace tessera {

struct HttpOptions {
  std::string address = "127.0.0.1";  // numeric, v4 or v6
  uint16_t port = 8080;               // 0: any free one, see HttpListener::port()
  int32_t threads = 2;
  std::size_t max_connections = 4096;  // more wait in the kernel's queue
  std::size_t header_bytes = 16 << 10;
  std::size_t body_bytes = 8 << 20;

  // What a client may take: between two requests, for a head, for a body, to make room for the
  // next piece of an answer.
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds header_timeout{15'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds write_timeout{30'000};

  std::string tls_certificate{};  // PEM files; both empty: plain HTTP
  std::string tls_key{};
};

// HTTP/1.0 and 1.1 on one port: keep-alive, pipelining, chunked answers, any number of open streams
// on a few threads. Each connection's calls to the handler come one after another.
//
// A client that closes its side, or resets, while its answer is being made has gone: the answer is
// destroyed at once. (What it sent before closing is still answered if that needs no waiting.)
class HttpListener {
 public:
  // Listens and serves as soon as it returns. `handler` must outlive the listener.
  // Errors: InvalidArgument (address, certificate, key: named), Unavailable (the port is taken).
  static absl::StatusOr<std::unique_ptr<HttpListener>> start(const HttpOptions& options,
                                                             HttpHandler& handler);

  virtual ~HttpListener() = default;  // stop()

  virtual uint16_t port() const = 0;
  virtual std::size_t connections() const = 0;

  // Closes the port. Open connections go on; an answer that begins after this closes its own.
  virtual void stop_accepting() = 0;

  // stop_accepting(), closes idle connections and waits until the others have had their answers.
  // False: `timeout` passed before that.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;

  // Cuts off what is left and joins the threads. Nothing is called afterwards.
  virtual void stop() = 0;
};

}  // namespace tessera
