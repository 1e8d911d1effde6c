#pragma once

#include <grpcpp/support/status.h>

#include <span>

#include "absl/status/statusor.h"
#include "server/service.h"
#include "tessera/v1/inference.pb.h"

// Between the messages of the proto and the types of the service. The proto is the reference.
namespace tessera {

// The one place where errors become gRPC status codes.
grpc::Status to_grpc(const absl::Status& status);

// Errors: InvalidArgument that names the field. What depends on the model (the context, ids out
// of range) is the engine's to refuse.
absl::StatusOr<GenerateRequest> parse_generate_request(const v1::GenerateRequest& message);

struct TokenizeCall {
  Prompt prompt;
  PromptOptions options;
};
absl::StatusOr<TokenizeCall> parse_tokenize_request(const v1::TokenizeRequest& message);

// Requires: not `failed`, which is a status.
v1::FinishReason to_wire(FinishReason reason);

v1::GetModelInfoResponse model_info(const Service& service);
v1::GetServerInfoResponse server_info(const Service& service);

}  // namespace tessera
