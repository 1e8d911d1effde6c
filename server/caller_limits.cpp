#include "server/caller_limits.h"

#include <fmt/format.h>

#include "server/openai/error.h"

namespace tessera {

absl::Status check_limits(const GenerateRequest& request, const TenantLimits& limits) {
  if (request.priority < limits.priority_min || request.priority > limits.priority_max) {
    return invalid_field("priority",
                         fmt::format("priority is {}, this key may use {} to {}", request.priority,
                                     limits.priority_min, limits.priority_max));
  }
  if (request.cache.pin && request.cache.ttl > limits.pin_ttl) {
    return invalid_field("cache.ttl",
                         fmt::format("cache.ttl is {} s, this server keeps pins for "
                                     "at most {} s",
                                     request.cache.ttl.count(), limits.pin_ttl.count()));
  }
  return absl::OkStatus();
}

TenantOfRequest tenant_of(const Caller& caller, int64_t token_capacity) {
  const TenantLimits& limits = caller.tenant;
  const auto part = static_cast<int64_t>(limits.pin_part * static_cast<double>(token_capacity));
  return {.id = caller.tenant_id,
          .share = limits.share,
          .pin_tokens = limits.pin_tokens.value_or(part)};
}

}  // namespace tessera
