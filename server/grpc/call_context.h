#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/request_work.h"
#include "server/telemetry/access_log.h"
#include "server/tenants/api_keys.h"

namespace google::protobuf {
class Message;
}
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

// gRPC counts a message's bytes only until it is parsed, and a call keeps its request.
// Returns: the room of a parsed request.
// Errors: Unavailable if the others leave it none.
absl::StatusOr<ByteBudget::Share> room_for(const RequestWork& work,
                                           const google::protobuf::Message& request);

// Message of a call whose request cannot wait for its turn to be read.
inline constexpr const char* kReadersBusy = "too many requests wait to be read: try again later";

// Adds the time of a retry to the trailing metadata of a refused call (retry_after.h).
void add_retry(grpc::ServerContextBase& context, const absl::Status& status);

}  // namespace tessera
