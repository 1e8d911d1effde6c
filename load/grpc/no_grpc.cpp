#include "load/grpc/grpc_server.h"

namespace tessera::load {

absl::StatusOr<std::unique_ptr<Server>> make_grpc_server(EventLoop& /*loop*/,
                                                         const std::string& /*target*/,
                                                         const ServerOptions& /*options*/) {
  return absl::UnimplementedError(
      "--url grpc://: this program was built without gRPC (TESSERA_SERVER)");
}

}  // namespace tessera::load
