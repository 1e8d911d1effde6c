#include "server/http/endpoints/endpoint.h"

#include <fmt/format.h>

#include <utility>

#include "server/access_log.h"
#include "server/http/replies.h"
#include "server/http/request_times.h"
#include "server/openai/error.h"
#include "server/service.h"

namespace tessera {

absl::Status check_model(const Service& service, std::string_view asked) {
  if (asked.empty() || asked == service.model_name()) {
    return absl::OkStatus();
  }
  absl::Status status = with_code(
      absl::NotFoundError(fmt::format("the model '{}' does not exist; this server has '{}'", asked,
                                      service.model_name())),
      "model_not_found");
  return with_param(std::move(status), "model");
}

absl::Status take_head(const EndpointContext& context, GenerateRequest& request) {
  request.caller = context.caller;
  request.record = context.record;
  return read_request_times(context.request, context.record->received, request);
}

HttpResult result_of(absl::StatusOr<HttpResult> result) {
  return result.ok() ? *std::move(result) : HttpResult(error_reply(result.status()));
}

}  // namespace tessera
