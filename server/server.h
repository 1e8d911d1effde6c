#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/settings.h"
#include "server/stop_signals.h"

namespace tessera {

// The whole server: the model, its engine, and the two front ends.
class Server {
 public:
  // Listens for HTTP first, so that /health says 503 while the model loads, then loads it, then
  // listens for gRPC. Logs "listening http://HOST:PORT" and "listening grpc://HOST:PORT".
  // Errors: those of the settings, the model's files, and a port that is taken.
  // ranks: that share the model, of which this process leads; null: it has it whole.
  static absl::StatusOr<std::unique_ptr<Server>> start(const Settings& settings,
                                                       Communicator* ranks);

  virtual ~Server() = default;

  // Not ready at once; for settings.drain_delay new requests are still taken; then what runs may
  // finish for up to settings.drain_timeout before it is cancelled. Returns when every client has
  // had its last event, or will not take it. Another signal cuts the waiting short.
  virtual void shut_down(StopSignals& signals) = 0;
};

}  // namespace tessera
