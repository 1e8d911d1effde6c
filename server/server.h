#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/settings/settings.h"
#include "server/start/stop_signals.h"

namespace tessera {

// The whole server: model, engine and the two front ends.
class Server {
 public:
  // Listens for HTTP first, so that /health returns 503 while the model loads. Then loads the
  // model, then listens for gRPC. Logs "listening http://HOST:PORT" and
  // "listening grpc://HOST:PORT".
  // `ranks`: the ranks that share the model, with this process as leader; not owned. Null: this
  // process has the whole model.
  // Errors: those of the settings, of the model's files, and of a port that is taken.
  static absl::StatusOr<std::unique_ptr<Server>> start(const Settings& settings,
                                                       Communicator* ranks);

  virtual ~Server() = default;

  // Reads keys, tenants and certificates again. Connections and requests go on. A file that cannot
  // be read changes nothing, and the log says why. Any thread.
  virtual void reload() = 0;

  // Health checks report not ready immediately. New requests are accepted for settings.drain_delay.
  // Then running requests may finish for up to settings.drain_timeout before they are cancelled.
  // Returns when every client has received its last event, or does not read it. Another signal ends
  // the waiting early.
  virtual void shut_down(StopSignals& signals) = 0;
};

}  // namespace tessera
