#include "server/routes/endpoint.h"

#include <utility>
#include <variant>

#include "base/status_macros.h"
#include "server/generation/service.h"
#include "server/request/model_sampling.h"
#include "server/request/tokenize_request.h"
#include "server/routes/replies.h"
#include "server/routes/request_times.h"
#include "server/telemetry/access_log.h"

namespace tessera {

absl::Status take_head(const EndpointContext& context, GenerateRequest& request) {
  fill_sampling(context.service.sampling(), request);
  request.caller = context.caller;
  request.admitted = true;
  request.record = context.record;
  return read_request_times(context.request, context.record->received, request);
}

void tell_warnings(const EndpointContext& context, std::span<const std::string> warnings) {
  for (const std::string& warning : warnings) {
    context.record->add_warning(warning);
  }
}

absl::StatusOr<std::vector<int32_t>> tokens_of(const Service& service,
                                               const TokenizeRequest& request) {
  GenerateRequest each;
  each.prompt_options = request.options;
  each.grammar = request.grammar;
  if (std::holds_alternative<Conversation>(request.prompt)) {
    TESSERA_RETURN_IF_ERROR(service.prepare_chat(request.tools, each).status());
  }
  return service.prompts().tokenize(request.prompt, each.prompt_options);
}

HttpResult result_of(absl::StatusOr<HttpResult> result) {
  return result.ok() ? *std::move(result) : HttpResult(error_reply(result.status()));
}

}  // namespace tessera
