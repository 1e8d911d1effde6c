#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/generation/service.h"
#include "server/request/completion_request.h"
#include "tessera/v1/inference.pb.h"

// Conversion between the proto's messages and the types of the service. The proto is the reference.
namespace tessera {

// The only mapping of errors to gRPC status codes.
grpc::Status to_grpc(const absl::Status& status);

// Returns: the error of a call without a message of its type. By gRPC's rules the code is INTERNAL,
// for example where a message says that it is compressed and the call names no encoding.
absl::Status no_message();

// Errors: InvalidArgument that names the field. The engine checks limits that depend on the model
// (the context, the range of ids).
absl::StatusOr<CompletionRequest> parse_generate_request(const v1::GenerateRequest& message);

struct TokenizeCall {
  Prompt prompt;
  PromptOptions options;
  bool texts = false;  // are returned too
};
absl::StatusOr<TokenizeCall> parse_tokenize_request(const v1::TokenizeRequest& message);

v1::GetModelInfoResponse model_info(const Service& service);
v1::GetServerInfoResponse server_info(const Service& service);
v1::GetCacheInfoResponse cache_info(const Service& service);

}  // namespace tessera
