#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/http/handler.h"

namespace tessera {

class Service;

// What an endpoint answers from.
struct EndpointContext {
  const HttpRequest& request;
  std::string_view rest;  // of the path, behind the route's own
  Service& service;
  std::shared_ptr<HttpWaker> waker;
  int32_t max_choices = 0;
  int64_t started = 0;
};

HttpResult answer_health(const EndpointContext& context);
HttpResult answer_metrics(const EndpointContext& context);
HttpResult answer_models(const EndpointContext& context);
HttpResult answer_model(const EndpointContext& context);
HttpResult answer_completions(const EndpointContext& context);
HttpResult answer_chat_completions(const EndpointContext& context);
HttpResult answer_cache(const EndpointContext& context);
HttpResult answer_cache_flush(const EndpointContext& context);
HttpResult answer_tokenize(const EndpointContext& context);
HttpResult answer_detokenize(const EndpointContext& context);

HttpReply json_reply(std::string body);

// `status` in OpenAI's shape, with Retry-After where trying again makes sense.
HttpReply error_reply(const absl::Status& status);

}  // namespace tessera
