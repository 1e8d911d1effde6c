#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/request_work.h"
#include "server/http/handler.h"

namespace tessera {

struct HttpOptions {
  std::string address = "127.0.0.1";  // numeric, v4 or v6
  uint16_t port = 8080;               // 0: any free port, see HttpListener::port()
  int32_t threads = 2;
  // The connection that has waited longest without a request is closed for one more. If all are
  // busy, the new one may only ask for a probe (HttpAdmission::probe).
  std::size_t max_connections = 4096;
  std::size_t header_bytes = 16 << 10;
  std::size_t body_bytes = 8 << 20;

  // Time limits of a client: between two requests, to send a head, to begin a body (which then goes
  // on as long as it arrives at 4 KiB/s), to read any part of an answer.
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds header_timeout{15'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds write_timeout{30'000};

  // A stream without data sends a ping after this time, and after each such time again. Common time
  // limits of clients and proxies begin at 20 s.
  std::chrono::milliseconds ping_interval{10'000};

  std::string tls_certificate{};  // PEM files; both empty: plain HTTP
  std::string tls_key{};
};

// Bytes of requests that a client may send ahead, besides one head.
inline constexpr std::size_t kHttpSentAheadBytes = 16 << 10;

// Connections beyond HttpOptions::max_connections, for probes.
inline constexpr std::size_t kProbeConnections = 16;

// HTTP/1.0 and 1.1 on one port: keep-alive, pipelining, chunked answers, any number of open streams
// on a few threads. The calls of one connection to the handler come one after another.
//
// A client that closes its side, or resets, during its answer counts as disconnected. The answer is
// destroyed at once. Requests sent before the close are still answered if that needs no waiting.
class HttpListener {
 public:
  // Returns: a listener that serves already. `handler` and all targets of `work` must outlive it.
  // Errors: InvalidArgument names the wrong address, certificate or key. Unavailable if the port is
  // taken.
  static absl::StatusOr<std::unique_ptr<HttpListener>> start(const HttpOptions& options,
                                                             HttpHandler& handler,
                                                             RequestWork work);

  virtual ~HttpListener() = default;  // calls stop()

  virtual uint16_t port() const = 0;
  virtual std::size_t connections() const = 0;

  // Reads certificate and key again, for new connections; without TLS it does nothing. Any thread.
  // Errors: as start(), and the certificate stays as it was.
  virtual absl::Status reload_tls() = 0;

  // Closes the port. Idle connections are closed, the others after their answer.
  virtual void stop_accepting() = 0;

  // Calls stop_accepting() and waits until all connections have ended.
  // Returns: false if `timeout` passed first.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;

  // Closes the remaining connections at once and joins the threads. No call to the handler comes
  // afterwards.
  virtual void stop() = 0;
};

}  // namespace tessera
