#pragma once

#include <chrono>
#include <optional>

#include "absl/status/status.h"

namespace tessera {

// Returns: a refusal with the time after which a retry may succeed. Front ends send it as the
// header Retry-After and as gRPC's grpc-retry-pushback-ms.
absl::Status with_retry_after(absl::Status status, std::chrono::duration<double> time);

// Returns: that time; none if the status has none.
std::optional<std::chrono::milliseconds> retry_after_of(const absl::Status& status);

}  // namespace tessera
