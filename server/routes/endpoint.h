#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/http/handler.h"

namespace tessera {

class ResponseStore;
class Service;
struct Caller;
struct GenerateRequest;
struct RequestRecord;
struct TokenizeRequest;

// Input of an endpoint.
struct EndpointContext {
  const HttpRequest& request;
  std::string_view rest;  // part of the path that the route's '*' stands for
  Service& service;
  ResponseStore& responses;
  std::shared_ptr<Waker> waker;
  std::shared_ptr<const Caller> caller;
  std::shared_ptr<RequestRecord> record;
  int32_t max_choices = 0;
  int64_t started = 0;  // of the server: seconds of the Unix epoch
};

// Sets the caller, the record and the times of a request from its head.
// Errors: those of read_request_times.
absl::Status take_head(const EndpointContext& context, GenerateRequest& request);

// Tells the client and the log which parts of the body were left out.
void tell_warnings(const EndpointContext& context, std::span<const std::string> warnings);

// Returns: the ids of the prompt that the same request would have for an answer.
// Errors: as Service::prepare_chat and Service::tokenize.
absl::StatusOr<std::vector<int32_t>> tokens_of(const Service& service,
                                               const TokenizeRequest& request);

// Returns: the result, or the reply of its error.
HttpResult result_of(absl::StatusOr<HttpResult> result);

}  // namespace tessera
