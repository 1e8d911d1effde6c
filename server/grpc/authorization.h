#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/api_keys.h"

namespace tessera {

// Checks the API key in a call's metadata.
// Returns: the key's name (ApiKeys::name_of).
// Errors: Unauthenticated if it has no valid key.
absl::StatusOr<std::string> authorize(const ApiKeys& keys, const grpc::ServerContextBase& context);

// Returns: an interceptor for reflection, which gRPC answers itself. It cancels reflection calls
// without a valid key. `keys` must outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> guard_reflection(
    const ApiKeys& keys);

}  // namespace tessera
