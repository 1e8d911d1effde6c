#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "load/client/event_loop.h"
#include "load/client/server_metrics.h"

namespace tessera::load {

struct ServerOptions {
  std::string api_key;
  double timeout = 600;  // seconds for one request
  double freeze = 5;     // seconds that a frozen client holds its connection
};

// The server under test, behind one protocol. All callbacks come on the thread of the event loop.
class Server : public Generator {
 public:
  struct Identity {
    std::string model;
    bool tessera = false;  // tessera-server
  };

  // Runs the loop until the server has named its models. Requests then ask for `model`; if that is
  // empty, for the first model that the server names.
  // Errors: Unavailable or NotFound (no answer), InvalidArgument (an answer that names no model).
  virtual absl::StatusOr<Identity> identify(const std::string& model) = 0;

  // Returns: true if generate() can play the fault.
  virtual bool plays(const Fault& fault) const = 0;

  // Passes on the present state, or nothing if the server does not tell it.
  virtual void read_metrics(std::function<void(std::optional<ServerReading>)> done) = 0;

  // Empties the prefix cache.
  virtual void flush_cache(std::function<void(absl::Status)> done) = 0;
};

}  // namespace tessera::load
