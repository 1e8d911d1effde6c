#include "server/grpc/call_context.h"

#include <fmt/format.h>
#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>

#include <utility>

#include "engine/retry_after.h"
#include "server/base/seconds.h"
#include "server/grpc/authorization.h"

namespace tessera {

std::optional<std::chrono::steady_clock::time_point> deadline_of(
    const grpc::ServerContextBase& context) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24 * 365)) {
    return std::nullopt;
  }
  return std::chrono::steady_clock::now() + left;
}

absl::StatusOr<std::optional<std::chrono::milliseconds>> queue_timeout_of(
    const grpc::ServerContextBase& context) {
  const std::string_view text = metadata_of(context, "x-queue-timeout");
  if (text.empty()) {
    return std::nullopt;
  }
  const std::optional<std::chrono::milliseconds> time = parse_seconds(text);
  if (!time.has_value()) {
    return absl::InvalidArgumentError(fmt::format(
        "metadata x-queue-timeout: must be a number of seconds above 0, at most {}", kMostSeconds));
  }
  return time;
}

void begin_record(grpc::ServerContextBase& context, const Caller& caller, std::string path,
                  RequestRecord& record) {
  record.set_caller(caller);
  record.id = request_id_of(metadata_of(context, "x-request-id"));
  record.method = "gRPC";
  record.path = std::move(path);
  context.AddInitialMetadata("x-request-id", record.id);
  record.trace = traceparent_of(metadata_of(context, "traceparent"));
  if (!record.trace.empty()) {
    context.AddInitialMetadata("traceparent", record.trace);
  }
}

absl::StatusOr<ByteBudget::Share> room_for(const RequestWork& work,
                                           const google::protobuf::Message& request) {
  return take_bytes(&work.budget, request.SpaceUsedLong());
}

// gRPC's name for the time is that of proposal A6.
void add_retry(grpc::ServerContextBase& context, const absl::Status& status) {
  if (const auto wait = retry_after_of(status)) {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", fmt::format("{}", wait->count()));
  }
}

}  // namespace tessera
