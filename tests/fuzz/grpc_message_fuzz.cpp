// Input: the bytes of a gRPC message, read as each request that has a parser of its own. An
// accepted request is within the limits of both front ends.
#include <google/protobuf/stubs/logging.h>

#include "base/check.h"
#include "server/grpc/embed_fields.h"
#include "server/grpc/wire.h"
#include "server/request/request_limits.h"
#include "tests/fuzz/fuzz_target.h"

namespace tessera {
namespace {

void expect_a_clients_error(const absl::Status& status) {
  TESSERA_CHECK(status.ok() || status.code() == absl::StatusCode::kInvalidArgument ||
                    status.code() == absl::StatusCode::kUnimplemented,
                "a message that cannot be read is not the client's error");
  TESSERA_CHECK(to_grpc(status).ok() == status.ok(), "an error is lost on the wire");
}

void expect_within_limits(const CompletionRequest& call) {
  TESSERA_CHECK(call.n >= 1 && kSampleCount.contains(call.n), "number of samples out of range");
  TESSERA_CHECK(!long_field(call.each), "a list is too long");
  TESSERA_CHECK(!stop_error(call.each.stop, kStopLimits), "stop strings out of range");
  TESSERA_CHECK(!call.each.max_tokens || *call.each.max_tokens >= 0, "max_tokens");
}

}  // namespace
}  // namespace tessera

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  // A line for each string that is no UTF-8 would take most of the time.
  const google::protobuf::LogSilencer silencer;
  const std::string bytes(text_of(data, size));
  v1::GenerateRequest generate;
  if (generate.ParseFromString(bytes)) {
    const auto call = parse_generate_request(generate);
    expect_a_clients_error(call.status());
    if (call.ok()) expect_within_limits(*call);
  }
  v1::TokenizeRequest tokenize;
  if (tokenize.ParseFromString(bytes)) {
    expect_a_clients_error(parse_tokenize_request(tokenize).status());
  }
  v1::EmbedRequest embed;
  if (embed.ParseFromString(bytes)) {
    expect_a_clients_error(parse_embed_request(embed).status());
  }
  return 0;
}
