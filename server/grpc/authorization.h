#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/tenants/api_keys.h"

namespace tessera {

// Checks the API key in a call's metadata.
// Returns: the caller. With `admin`, it has the right to admin routes.
// Errors: Unauthenticated if the call has no valid key. PermissionDenied without that right.
absl::StatusOr<std::shared_ptr<const Caller>> authorize(const ApiKeys& keys,
                                                        const grpc::ServerContextBase& context,
                                                        bool admin = false);

// Returns: the value of a call's metadata; empty without.
std::string_view metadata_of(const grpc::ServerContextBase& context, const char* name);

}  // namespace tessera
