#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "engine/request.h"

namespace tessera {

// Limits of one tenant, from the tenant file or, for a server with one tenant, from the settings.
struct TenantLimits {
  std::string name;  // empty: the only tenant
  std::string salt;  // keeps its prefixes apart; empty for the only tenant
  int32_t share = 1;
  int32_t priority_min = -4;
  int32_t priority_max = 4;
  std::optional<int64_t> pin_tokens;  // none: `pin_part` of the cache
  double pin_part = 0.25;
  std::chrono::seconds pin_ttl{3600};
  int64_t requests_per_minute = 0;  // 0: no limit
  int64_t tokens_per_minute = 0;    // of prompts and answers; 0: no limit
};

// Rates of one tenant, as token buckets. A bucket holds the allowance of ten seconds, and one
// request at least. Prompts are charged when they are tokenized and answers when they end, so the
// bucket of tokens may be overdrawn. The next request then waits until it is not. Thread-safe.
class RateMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Counts a request, before its work begins.
  // Errors: ResourceExhausted with the time of a retry, and nothing is counted.
  absl::Status admit(const TenantLimits& limits, Time now);
  void charge(int64_t tokens);                    // of its prompt, and of an answer
  void refund(int64_t requests, int64_t tokens);  // that were counted for nothing

 private:
  struct Bucket {
    double level = 0;
    bool filled = false;

    void refill(double per_minute, std::chrono::duration<double> since);
    // Returns: the time until the level is `needed`.
    std::chrono::duration<double> until(double needed, double per_minute) const;
  };

  std::mutex mutex_;
  Time last_;
  Bucket requests_;
  Bucket tokens_;
};

// The sender of a request: a key and its tenant. Immutable, except for the meter.
struct Caller {
  std::string key;  // its name, for the log; empty without keys
  TenantLimits tenant;
  int32_t tenant_id = 0;  // TenantOfRequest::id
  bool admin = true;      // may use admin routes
  std::shared_ptr<RateMeter> meter = std::make_shared<RateMeter>();

  // Returns: the engine's salt for a request, from the client's own. It keeps the prefixes of
  // tenants apart; a client's salt divides those of its own tenant.
  std::string cache_salt(const std::string& of_client) const;

  // Returns: whose requests take turns with others: the tenant, or the key if there is one tenant.
  const std::string& turn_name() const { return tenant.name.empty() ? key : tenant.name; }
};

}  // namespace tessera
