#include "server/tenants/caller.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/retry_after.h"

namespace tessera {
namespace {

constexpr double kBurstMinutes = 10.0 / 60;

double capacity(double per_minute) {
  return std::max(1.0, per_minute * kBurstMinutes);
}

absl::Status refusal(const char* what, int64_t per_minute, std::chrono::duration<double> wait) {
  return with_retry_after(
      absl::ResourceExhaustedError(fmt::format("the rate limit is {} {} a minute; try again in "
                                               "{:.0f} s",
                                               per_minute, what, std::max(1.0, wait.count()))),
      wait);
}

}  // namespace

void RateMeter::Bucket::refill(double per_minute, std::chrono::duration<double> since) {
  level = filled ? std::min(capacity(per_minute), level + per_minute * since.count() / 60)
                 : capacity(per_minute);
  filled = true;
}

std::chrono::duration<double> RateMeter::Bucket::until(double needed, double per_minute) const {
  return std::chrono::duration<double>(std::max(0.0, (needed - level) / per_minute * 60));
}

absl::Status RateMeter::admit(const TenantLimits& limits, Time now) {
  const std::lock_guard lock(mutex_);
  const auto requests = static_cast<double>(limits.requests_per_minute);
  const auto tokens = static_cast<double>(limits.tokens_per_minute);
  requests_.refill(requests, now - last_);
  tokens_.refill(tokens, now - last_);
  last_ = now;
  if (requests > 0 && requests_.level < 1) {
    return refusal("requests", limits.requests_per_minute, requests_.until(1, requests));
  }
  if (tokens > 0 && tokens_.level <= 0) {
    return refusal("tokens", limits.tokens_per_minute, tokens_.until(1, tokens));
  }
  requests_.level -= 1;
  return absl::OkStatus();
}

void RateMeter::refund(int64_t requests, int64_t tokens) {
  const std::lock_guard lock(mutex_);
  requests_.level += static_cast<double>(requests);
  tokens_.level += static_cast<double>(tokens);
}

void RateMeter::charge(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  tokens_.level -= static_cast<double>(tokens);
}

std::string Caller::cache_salt(const std::string& of_client) const {
  // With the length, no salt of a client makes that of another tenant.
  return tenant.salt.empty() ? of_client
                             : fmt::format("{}:{}:{}", tenant.salt.size(), tenant.salt, of_client);
}

}  // namespace tessera
