#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/access_log.h"
#include "server/api_keys.h"

namespace grpc {
class ServerContextBase;
}

namespace tessera {

// Returns: the call's deadline on the engine's clock; none if it is more than a year away.
std::optional<std::chrono::steady_clock::time_point> deadline_of(
    const grpc::ServerContextBase& context);

// Returns: the queue timeout in the call's metadata; none without.
// Errors: InvalidArgument.
absl::StatusOr<std::optional<std::chrono::milliseconds>> queue_timeout_of(
    const grpc::ServerContextBase& context);

// Sets the caller, the ids and the path of a call's record, and sends the ids in its initial
// metadata.
void begin_record(grpc::ServerContextBase& context, const Caller& caller, std::string path,
                  RequestRecord& record);

// Adds the time of a retry to the trailing metadata of a refused call (retry_after.h).
void add_retry(grpc::ServerContextBase& context, const absl::Status& status);

}  // namespace tessera
