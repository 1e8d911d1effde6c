#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/request/generate_request.h"

namespace tessera {

// Errors: InvalidArgument for a priority or a pin beyond the limits of the caller's tenant, and for
// a prefetch of a request that needs its prompt computed.
absl::Status check_limits(const GenerateRequest& request, const TenantLimits& limits);

// Returns: what stays of a request in the prefix cache: the prefixes before its marks, and by its
// retention. No time is longer than the caller's pins may be.
// Requires: the request has a caller.
std::vector<KeptPrefix> kept_within(std::vector<KeptPrefix> kept, const GenerateRequest& request);

// Returns: the caller's tenant as the engine knows it. token_capacity: of the KV cache.
TenantOfRequest tenant_of(const Caller& caller, int64_t token_capacity);

}  // namespace tessera
