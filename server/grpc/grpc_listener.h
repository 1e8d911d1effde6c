#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/api_keys.h"

namespace tessera {

class Service;

struct GrpcOptions {
  std::string address;                     // numeric, v4 or v6, or a host's name
  int32_t port = 50051;                    // 0: any free one, see GrpcListener::port()
  int32_t max_message_bytes = 8 << 20;     // of a request
  std::size_t max_pending_tokens = 16384;  // that a client has not read; then it is too slow

  // A connection that is silent for so long is asked whether it is alive, and closed when it does
  // not answer: what it ran is cancelled. Clients may ask no more often than `min_ping_interval`.
  std::chrono::milliseconds keepalive_interval{30'000};
  std::chrono::milliseconds keepalive_timeout{10'000};
  std::chrono::milliseconds min_ping_interval{5'000};

  // Any of them opens all but grpc.health.v1, as metadata `authorization: Bearer KEY`. Without one
  // a call is UNAUTHENTICATED, and one of reflection, which cannot say more, CANCELLED.
  ApiKeys api_keys{};

  std::string tls_certificate{};  // PEM files; both empty: plain HTTP/2
  std::string tls_key{};
};

// The gRPC front end: proto/tessera/v1/inference.proto, grpc.health.v1 and reflection.
class GrpcListener {
 public:
  // Listens and serves as soon as it returns. `service` must outlive the listener, and its engine
  // must have been stopped, or be idle, before the listener goes.
  // Errors: NotFound (certificate or key cannot be read), Unavailable (the address is not ours, the
  // port is taken, or certificate and key do not fit).
  static absl::StatusOr<std::unique_ptr<GrpcListener>> start(const GrpcOptions& options,
                                                             Service& service);

  virtual ~GrpcListener() = default;  // stop()

  virtual int32_t port() const = 0;

  // Health says NOT_SERVING from now on. Calls are served as before.
  virtual void set_not_serving() = 0;

  // Waits until no Generate is open. False: `timeout` passed before that.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;

  // Closes the port, cancels what is left and joins the threads.
  virtual void stop() = 0;
};

}  // namespace tessera
