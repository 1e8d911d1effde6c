// /v1/completions, /v1/chat/completions and /infill.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/generation/prepare_request.h"
#include "server/generation/served_model.h"
#include "server/openai/completion_printer.h"
#include "server/openai/infill_printer.h"
#include "server/openai/infill_request.h"
#include "server/openai/request.h"
#include "server/routes/completion_answer.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

absl::StatusOr<HttpResult> complete(const EndpointContext& context,
                                    absl::StatusOr<CompletionRequest> parsed) {
  TESSERA_RETURN_IF_ERROR(parsed.status());
  tell_warnings(context, parsed->warnings);
  TESSERA_RETURN_IF_ERROR(choose_model(context.service, parsed->model, parsed->each));
  const int32_t each = std::max(parsed->n, parsed->best_of);
  const auto choices = static_cast<int64_t>(parsed->prompts.size()) * each;
  if (choices > context.max_choices) {
    return invalid_field(
        parsed->n > 1 ? "n"
        : each > 1    ? "best_of"
                      : "prompt",
        fmt::format("the request asks for {} choices (prompts times n or best_of), at most {} are "
                    "allowed",
                    choices, context.max_choices));
  }
  TESSERA_RETURN_IF_ERROR(take_head(context, parsed->each));
  auto printer = make_completion_printer(context.service, *parsed);
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpAnswer> answer,
      answer_completion(context.service, *std::move(parsed), std::move(printer), context.waker));
  return HttpResult(std::move(answer));
}

absl::StatusOr<HttpResult> fill_in(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(CompletionRequest request, parse_infill_request(context.request.body));
  TESSERA_RETURN_IF_ERROR(choose_model(context.service, request.model, request.each));
  TESSERA_RETURN_IF_ERROR(take_head(context, request.each));
  auto printer = make_infill_printer(answered_name(context.service, request.model));
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpAnswer> answer,
      answer_completion(context.service, std::move(request), std::move(printer), context.waker));
  return HttpResult(std::move(answer));
}

}  // namespace

HttpResult answer_infill(const EndpointContext& context) {
  return result_of(fill_in(context));
}

HttpResult answer_completions(const EndpointContext& context) {
  return result_of(complete(context, parse_completion_request(context.request.body)));
}

HttpResult answer_chat_completions(const EndpointContext& context) {
  return result_of(complete(context, parse_chat_request(context.request.body)));
}

}  // namespace tessera
