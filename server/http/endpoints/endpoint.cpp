#include "server/http/endpoints/endpoint.h"

#include <fmt/format.h>

#include <utility>

#include "server/access_log.h"
#include "server/http/replies.h"
#include "server/http/request_times.h"
#include "server/service.h"

namespace tessera {

absl::Status take_head(const EndpointContext& context, GenerateRequest& request) {
  request.caller = context.caller;
  request.admitted = true;
  request.record = context.record;
  return read_request_times(context.request, context.record->received, request);
}

void tell_warnings(const EndpointContext& context, std::span<const std::string> warnings) {
  context.record->warning = fmt::format("{}", fmt::join(warnings, "; "));
}

HttpResult result_of(absl::StatusOr<HttpResult> result) {
  return result.ok() ? *std::move(result) : HttpResult(error_reply(result.status()));
}

}  // namespace tessera
