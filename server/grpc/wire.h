#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/chat/tool_use.h"
#include "server/generation/service.h"
#include "tessera/v1/inference.pb.h"

// Conversion between the proto's messages and the types of the service. The proto is the reference.
namespace tessera {

// The only mapping of errors to gRPC status codes.
grpc::Status to_grpc(const absl::Status& status);

// Returns: the error of a call without a message of its type. By gRPC's rules the code is INTERNAL,
// for example where a message says that it is compressed and the call names no encoding.
absl::Status no_message();

struct GenerateCallRequest {
  GenerateRequest generate;
  int32_t n = 1;
  int32_t best_of = 1;             // >= n: sequences that are generated
  bool logprobs = false;           // of generated tokens, are sent
  bool prompt_logprobs = false;    // likewise
  bool prompt_ids = false;         // the prompt's ids are sent, without log probabilities
  std::string model{};             // empty: the served model
  std::optional<ToolUse> tools{};  // of a chat
  bool reasoning = true;           // a chat's thoughts are sent
};

// Errors: InvalidArgument that names the field. The engine checks limits that depend on the model
// (the context, the range of ids).
absl::StatusOr<GenerateCallRequest> parse_generate_request(const v1::GenerateRequest& message);

struct TokenizeCall {
  Prompt prompt;
  PromptOptions options;
  bool texts = false;  // are returned too
};
absl::StatusOr<TokenizeCall> parse_tokenize_request(const v1::TokenizeRequest& message);

// Token as reported by the engine, kept until it is written.
struct SeenToken {
  int32_t token = 0;
  std::optional<float> logprob{};  // none: not requested, or the first token of a prompt
  std::vector<TokenLogprob> top{};
  int32_t rank = 0;  // 0: not known
};
SeenToken seen(const TokenLogprobs& logprobs);
v1::TokenLogprobs to_wire(const SeenToken& token, const Tokenizer& tokenizer);

// Requires: `reason` is not `failed`; a failed call ends with a status.
v1::FinishReason to_wire(FinishReason reason);

v1::GetModelInfoResponse model_info(const Service& service);
v1::GetServerInfoResponse server_info(const Service& service);
v1::GetCacheInfoResponse cache_info(const Service& service);

}  // namespace tessera
