#include "server/http/endpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/status_macros.h"
#include "server/http/completion_answer.h"
#include "server/openai/error.h"
#include "server/openai/request.h"
#include "server/openai/response.h"

namespace tessera {

namespace {

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

HttpResult result_of(absl::StatusOr<HttpResult> result) {
  return result.ok() ? *std::move(result) : HttpResult(error_reply(result.status()));
}

absl::StatusOr<HttpResult> complete(const EndpointContext& context,
                                    absl::StatusOr<CompletionRequest> parsed) {
  TESSERA_RETURN_IF_ERROR(parsed.status());
  TESSERA_RETURN_IF_ERROR(check_model(context.service, parsed->model));
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
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<HttpAnswer> answer,
                           answer_completion(context.service, *std::move(parsed), context.waker));
  return HttpResult(std::move(answer));
}

absl::StatusOr<HttpResult> tokenize(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const TokenizeRequest asked,
                           parse_tokenize_request(context.request.body));
  const Service& service = context.service;
  TESSERA_RETURN_IF_ERROR(check_model(service, asked.model));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           service.tokenize(asked.prompt, asked.options));
  std::optional<std::vector<std::string>> texts;
  if (asked.token_texts) {
    texts.emplace();
    for (const int32_t id : ids) {
      texts->push_back(service.tokenizer().token_bytes(id, /*keep_special=*/true));
    }
  }
  return HttpResult(json_reply(print_tokens(ids, service.engine().options().context, texts)));
}

absl::StatusOr<HttpResult> detokenize(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const DetokenizeRequest asked,
                           parse_detokenize_request(context.request.body));
  TESSERA_RETURN_IF_ERROR(check_model(context.service, asked.model));
  TESSERA_ASSIGN_OR_RETURN(const std::string text, context.service.detokenize(asked.tokens));
  return HttpResult(json_reply(print_prompt(text)));
}

ModelCard card(const EndpointContext& context) {
  return {context.service.model_name(), context.started,
          context.service.engine().options().context};
}

}  // namespace

HttpResult answer_health(const EndpointContext& context) {
  if (!context.service.ready()) {
    return error_reply(absl::UnavailableError("the server is shutting down"));
  }
  return json_reply(R"({"status":"ok"})");
}

HttpResult answer_metrics(const EndpointContext& context) {
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = context.service.expose_metrics();
  return reply;
}

HttpResult answer_models(const EndpointContext& context) {
  return json_reply(print_models(card(context)));
}

HttpResult answer_model(const EndpointContext& context) {
  const absl::Status known = check_model(context.service, context.rest);
  return known.ok() ? json_reply(print_model(card(context))) : error_reply(known);
}

HttpResult answer_completions(const EndpointContext& context) {
  return result_of(complete(context, parse_completion_request(context.request.body)));
}

HttpResult answer_chat_completions(const EndpointContext& context) {
  return result_of(complete(context, parse_chat_request(context.request.body)));
}

HttpResult answer_cache(const EndpointContext& context) {
  return json_reply(print_cache(context.service.engine().stats()));
}

HttpResult answer_cache_flush(const EndpointContext& context) {
  context.service.engine().flush_cache();
  return json_reply(R"({"status":"ok"})");
}

HttpResult answer_tokenize(const EndpointContext& context) {
  return result_of(tokenize(context));
}

HttpResult answer_detokenize(const EndpointContext& context) {
  return result_of(detokenize(context));
}

HttpReply json_reply(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

HttpReply error_reply(const absl::Status& status) {
  HttpReply reply;
  reply.status = http_status(status);
  reply.body = print_error(status);
  if (reply.status == 429 || reply.status == 503) {
    reply.headers.emplace_back("Retry-After", "1");
  } else if (reply.status == 401) {
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return reply;
}

}  // namespace tessera
