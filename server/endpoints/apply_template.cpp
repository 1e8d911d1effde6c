// /apply-template: the prompt that a chat would have.
#include "base/status_macros.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/json/print_json.h"
#include "server/openai/request.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

absl::StatusOr<HttpResult> apply(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(CompletionRequest request, parse_chat_request(context.request.body));
  tell_warnings(context, request.warnings);
  request.each.record = context.record;
  TESSERA_RETURN_IF_ERROR(check_model(context.service, request.model));
  TESSERA_RETURN_IF_ERROR(context.service.prepare_chat(request.tools, request.each).status());
  TESSERA_ASSIGN_OR_RETURN(
      const std::string prompt,
      context.service.prompts().render(request.prompts.front(), request.each.prompt_options));
  return HttpResult(json_reply(print_json({{"prompt", prompt}})));
}

}  // namespace

HttpResult answer_apply_template(const EndpointContext& context) {
  return result_of(apply(context));
}

}  // namespace tessera
