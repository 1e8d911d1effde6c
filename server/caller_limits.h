#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "server/service.h"

namespace tessera {

// Errors: InvalidArgument for a priority or a pin beyond the limits of the caller's tenant.
absl::Status check_limits(const GenerateRequest& request, const TenantLimits& limits);

// Returns: the caller's tenant as the engine knows it. token_capacity: of the KV cache.
TenantOfRequest tenant_of(const Caller& caller, int64_t token_capacity);

}  // namespace tessera
