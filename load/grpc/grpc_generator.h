#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "load/client/event_loop.h"

namespace tessera::load {

struct GrpcOptions {
  std::string target;  // HOST:PORT
  std::string api_key;
  double timeout = 600;  // seconds; the deadline of a call
};

// Generates through tessera.v1.Inference over one plain-text channel. Tokens are counted from the
// messages. A request with a field that the service does not have ends as client_error, which names
// the field. Of the faults there is only `close`, which cancels the call. `loop` must outlive the
// generator.
// Errors: Unimplemented if the program was built without gRPC.
absl::StatusOr<std::unique_ptr<Generator>> make_grpc_generator(EventLoop& loop,
                                                               const GrpcOptions& options);

}  // namespace tessera::load
