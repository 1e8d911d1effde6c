#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "eval/measurement/http_address.h"
#include "load/client/event_loop.h"

namespace tessera::load {

struct HttpCall {
  std::string target;  // "/v1/models"
  std::string body{};  // empty, and not `post`: GET
  bool post = false;
  Fault fault{};
};

struct HttpHead {
  int status = 0;
  std::string retry_after;
  bool event_stream = false;
};

enum class CallEnd {
  complete,
  no_connection,
  connection_lost,
  broken,
  malformed,
  timed_out,
  abandoned
};

// Receives one response. ended() is the last call, and comes once.
class HttpResponse {
 public:
  virtual ~HttpResponse() = default;
  virtual void sent() {}
  virtual void head(const HttpHead& head) = 0;
  virtual void body(std::string_view bytes) = 0;

  // Returns: events with text so far, which decide when a fault takes place.
  virtual int64_t events() const { return 0; }
  virtual void ended(CallEnd end, const std::string& message) = 0;
};

struct HttpOptions {
  std::string api_key;
  double timeout = 600;    // seconds for one call
  double freeze = 5;       // seconds that a frozen client holds its connection
  size_t max_idle = 4096;  // kept-alive connections that wait for a call
};

// HTTP/1.1 calls to one server over kept-alive connections, any number at once. A call on a kept
// connection that the server has closed meanwhile is repeated once on a new connection. Buffers are
// of fixed size; bodies are handed on as they come.
class HttpConnections {
 public:
  virtual ~HttpConnections() = default;
  virtual void call(HttpCall call, std::shared_ptr<HttpResponse> response) = 0;
};

// An event loop with sockets.
class HttpLoop : public EventLoop {
 public:
  static std::unique_ptr<HttpLoop> create();

  // The loop must outlive the connections.
  // Errors: Unavailable if the host's name cannot be resolved.
  virtual absl::StatusOr<std::unique_ptr<HttpConnections>> connections(
      const HttpAddress& address, const HttpOptions& options) = 0;
};

}  // namespace tessera::load
