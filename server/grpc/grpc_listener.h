#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/request_work.h"
#include "server/tenants/api_keys.h"

namespace tessera {

class Service;

struct GrpcOptions {
  std::string address;                  // numeric, v4 or v6, or a host name
  int32_t port = 50051;                 // 0: any free port, see GrpcListener::port()
  int32_t max_message_bytes = 8 << 20;  // maximum size of a request

  // The connection that has been silent for the longest time is closed for one more.
  std::size_t max_connections = 1024;
  int32_t max_streams = 256;               // calls at once on one connection
  std::size_t memory_bytes = 192U << 20U;  // of messages that are read and written
  std::size_t call_bytes = 64U << 20U;     // of open calls besides their messages (open_calls.h)

  // A connection that is idle for `keepalive_interval` gets a ping. Without a reply in time it is
  // closed, and its calls are cancelled. Clients may not ping more often than `min_ping_interval`.
  std::chrono::milliseconds keepalive_interval{30'000};
  std::chrono::milliseconds keepalive_timeout{10'000};
  std::chrono::milliseconds min_ping_interval{5'000};

  // A client may take this time to read a message, and a second more for each 256 KiB. Then its
  // call is cancelled.
  std::chrono::milliseconds write_timeout{30'000};

  // Any of these keys authorizes a call, as metadata `authorization: Bearer KEY`. grpc.health.v1
  // needs none. A call without a valid key gets UNAUTHENTICATED.
  ApiKeys api_keys{};

  std::string tls_certificate{};  // PEM files; both empty: plain HTTP/2
  std::string tls_key{};
};

// gRPC front end: proto/tessera/v1/inference.proto, grpc.health.v1 and reflection.
class GrpcListener {
 public:
  // Returns: a listener that serves already. `service` and all targets of `work` must outlive the
  // listener. The service's engine must be stopped or idle before the listener is destroyed.
  // Errors: NotFound if the certificate or key cannot be read. Unavailable if the address is not
  // one of this machine, the port is taken, or certificate and key do not fit together.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> start(const GrpcOptions& options,
                                                             Service& service, RequestWork work);

  virtual ~GrpcListener() = default;  // calls stop()

  virtual int32_t port() const = 0;

  // Health reports NOT_SERVING from now on. Calls are served as before.
  virtual void set_not_serving() = 0;

  // Closes the port. Calls on open connections are served as before.
  virtual void close_port() = 0;

  // Calls close_port(), and tells clients to leave their connections (GOAWAY). Running calls go on,
  // except those that watch health: they end.
  virtual void stop_accepting() = 0;

  // Waits until no Generate call is open.
  // Returns: false if `timeout` passed first.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;

  // Calls stop_accepting(), cancels the calls that are still open after half a second, and joins
  // the threads.
  virtual void stop() = 0;
};

}  // namespace tessera
