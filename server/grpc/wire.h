#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/service.h"
#include "tessera/v1/inference.pb.h"

// Between the messages of the proto and the types of the service. The proto is the reference.
namespace tessera {

// The one place where errors become gRPC status codes.
grpc::Status to_grpc(const absl::Status& status);

struct GenerateCallRequest {
  GenerateRequest generate;
  int32_t n = 1;
};

// Errors: InvalidArgument that names the field. What depends on the model (the context, ids out
// of range) is the engine's to refuse.
absl::StatusOr<GenerateCallRequest> parse_generate_request(const v1::GenerateRequest& message);

struct TokenizeCall {
  Prompt prompt;
  PromptOptions options;
};
absl::StatusOr<TokenizeCall> parse_tokenize_request(const v1::TokenizeRequest& message);

// A token as the engine reported it, kept until it is written.
struct SeenToken {
  int32_t token = 0;
  std::optional<float> logprob{};  // none: not asked for, or the first of a prompt
  std::vector<TokenLogprob> top{};
};
SeenToken seen(const TokenLogprobs& logprobs);
v1::TokenLogprobs to_wire(const SeenToken& token, const Tokenizer& tokenizer);

// Requires: not `failed`, which is a status.
v1::FinishReason to_wire(FinishReason reason);

v1::GetModelInfoResponse model_info(const Service& service);
v1::GetServerInfoResponse server_info(const Service& service);
v1::GetCacheInfoResponse cache_info(const Service& service);

}  // namespace tessera
