#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>

#include "absl/status/status.h"
#include "server/api_keys.h"

namespace tessera {

// Whether a call shows one of the keys. Errors: Unauthenticated.
absl::Status authorize(const ApiKeys& keys, const grpc::ServerContextBase& context);

// For reflection, which is not ours to answer: cancels its calls that show no key. `keys` must
// outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> guard_reflection(
    const ApiKeys& keys);

}  // namespace tessera
