#include "load/grpc/grpc_generator.h"

namespace tessera::load {

absl::StatusOr<std::unique_ptr<Generator>> make_grpc_generator(EventLoop& /*loop*/,
                                                               const GrpcOptions& /*options*/) {
  return absl::UnimplementedError("--grpc: this program was built without gRPC (TESSERA_SERVER)");
}

}  // namespace tessera::load
