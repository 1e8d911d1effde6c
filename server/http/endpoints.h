#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/http/handler.h"

namespace tessera {

class Service;

// Input of an endpoint.
struct EndpointContext {
  const HttpRequest& request;
  std::string_view rest;  // part of the path after that of the route
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

// Returns: `status` in OpenAI's format, with Retry-After if a retry makes sense.
HttpReply error_reply(const absl::Status& status);

}  // namespace tessera
