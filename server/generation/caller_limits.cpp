#include "server/generation/caller_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "server/base/error.h"

namespace tessera {

absl::Status check_limits(const GenerateRequest& request, const TenantLimits& limits) {
  if (request.priority < limits.priority_min || request.priority > limits.priority_max) {
    return invalid_field("priority",
                         fmt::format("priority is {}, this key may use {} to {}", request.priority,
                                     limits.priority_min, limits.priority_max));
  }
  if (request.cache.pin && request.cache.ttl > limits.pin_ttl) {
    const std::string field(request.ttl_field);
    return invalid_field(field,
                         fmt::format("{} is {} s, this server keeps pins for at most {} s", field,
                                     request.cache.ttl.count(), limits.pin_ttl.count()));
  }
  if (request.cache.prefetch &&
      (request.pooling.has_value() || request.sampling.prompt_logprobs.has_value())) {
    return invalid_field("cache.prefetch",
                         "cache.prefetch computes nothing: neither embeddings nor log "
                         "probabilities of the prompt");
  }
  return absl::OkStatus();
}

std::vector<KeptPrefix> kept_within(std::vector<KeptPrefix> kept, const GenerateRequest& request) {
  if (request.retention.has_value() && kept.size() < kMaxKeptPrefixes) {
    kept.push_back({KeptPrefix::kAll, *request.retention});
  }
  for (KeptPrefix& one : kept) {
    one.ttl = std::min(one.ttl, request.caller->tenant.pin_ttl);
  }
  return kept;
}

TenantOfRequest tenant_of(const Caller& caller, int64_t token_capacity) {
  const TenantLimits& limits = caller.tenant;
  const auto part = static_cast<int64_t>(limits.pin_part * static_cast<double>(token_capacity));
  return {.id = caller.tenant_id,
          .share = limits.share,
          .pin_tokens = limits.pin_tokens.value_or(part)};
}

}  // namespace tessera
