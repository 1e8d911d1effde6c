#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "load/client/server.h"

namespace tessera::load {

// tessera-server by tessera.v1.Inference alone, over one plain-text channel to `target`
// ("HOST:PORT"). Tokens are counted from the messages, and the state comes from GetServerInfo and
// GetCacheInfo. A request with a field that the service does not have ends as client_error, which
// names the field. Of the faults there is only `close` after the request was sent: it cancels the
// call. `loop` must outlive the server.
// Errors: Unimplemented if the program was built without gRPC.
absl::StatusOr<std::unique_ptr<Server>> make_grpc_server(EventLoop& loop, const std::string& target,
                                                         const ServerOptions& options);

}  // namespace tessera::load
