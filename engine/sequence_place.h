#pragma once

#include <cstdint>
#include <optional>

#include "engine/candidate.h"
#include "engine/request.h"

namespace tessera {

// The place of a sequence among those of all tenants. TenantClock alone sets it; others read it.
class SequencePlace {
 public:
  // request: the id of its first sample, which tells the order of arrival.
  SequencePlace(const TenantOfRequest& tenant, int32_t priority, RequestId request)
      : tenant_(tenant),
        turn_{.tenant = tenant.id,
              .share = tenant.share,
              .order = order_of(priority, static_cast<int64_t>(request)),
              .priority = priority} {}

  const TenantOfRequest& tenant() const { return tenant_; }
  int64_t order() const { return turn_.order; }  // within its tenant, see order_of
  // The time of its tenant's clock at its first admission, in virtual time; none before that.
  std::optional<int64_t> time() const { return time_; }
  // The time that orders it in the next step: its own, or the expected one before its admission.
  int64_t start() const { return turn_.start; }
  const Turn& turn() const { return turn_; }  // in the next step

 private:
  friend class TenantClock;

  TenantOfRequest tenant_;
  Turn turn_;
  std::optional<int64_t> time_;
};

}  // namespace tessera
