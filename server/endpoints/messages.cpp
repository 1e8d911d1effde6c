// /v1/messages and /v1/messages/count_tokens: Anthropic's dialect.
#include <utility>

#include "base/status_macros.h"
#include "server/anthropic/messages_printer.h"
#include "server/anthropic/messages_request.h"
#include "server/generation/prepare_request.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/routes/completion_answer.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

HttpResult printed(const EndpointContext& context, absl::StatusOr<HttpResult> result) {
  return result.ok() ? *std::move(result)
                     : HttpResult(error_reply_at(context.request.path, result.status()));
}

absl::StatusOr<HttpResult> answer(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(CompletionRequest request, parse_messages_request(context.request.body));
  tell_warnings(context, request.warnings);
  TESSERA_RETURN_IF_ERROR(choose_model(context.service, request.model, request.each));
  TESSERA_RETURN_IF_ERROR(take_head(context, request.each));
  auto printer = make_messages_printer(answered_name(context.service, request.model));
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpAnswer> answer,
      answer_completion(context.service, std::move(request), std::move(printer), context.waker));
  return HttpResult(std::move(answer));
}

absl::StatusOr<HttpResult> count(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const TokenizeRequest request,
                           parse_count_tokens_request(context.request.body));
  tell_warnings(context, request.warnings);
  TESSERA_RETURN_IF_ERROR(check_model(context.service, request.model));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokens_of(context.service, request));
  context.service.charge_text(*context.caller, ids.size());
  return HttpResult(json_reply(print_token_count(ids.size())));
}

}  // namespace

HttpResult answer_messages(const EndpointContext& context) {
  return printed(context, answer(context));
}

HttpResult answer_count_tokens(const EndpointContext& context) {
  return printed(context, count(context));
}

}  // namespace tessera
