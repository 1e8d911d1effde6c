#include "server/grpc/embed_fields.h"

#include <fmt/format.h>

#include "base/status_macros.h"
#include "server/grpc/kv_options.h"
#include "server/grpc/request_options.h"

namespace tessera {
namespace {

absl::StatusOr<Prompt> parse_input(const v1::EmbedInput& message, int index) {
  switch (message.input_case()) {
    case v1::EmbedInput::kText:
      return Prompt(message.text());
    case v1::EmbedInput::kTokens:
      return Prompt(
          std::vector<int32_t>(message.tokens().ids().begin(), message.tokens().ids().end()));
    case v1::EmbedInput::INPUT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      fmt::format("inputs[{}]: one of text and tokens is required", index));
}

absl::StatusOr<std::optional<Pooling>> pooling_of(v1::Pooling pooling) {
  switch (pooling) {
    case v1::POOLING_UNSPECIFIED:
      return std::nullopt;
    case v1::POOLING_LAST:
      return Pooling::last;
    case v1::POOLING_MEAN:
      return Pooling::mean;
    case v1::POOLING_CLS:
      return Pooling::cls;
    default:
      return absl::InvalidArgumentError(
          fmt::format("pooling: {} is not known to this server", static_cast<int>(pooling)));
  }
}

}  // namespace

absl::StatusOr<EmbeddingRequest> parse_embed_request(const v1::EmbedRequest& message) {
  EmbeddingRequest request;
  for (int i = 0; i < message.inputs_size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(Prompt input, parse_input(message.inputs(i), i));
    request.inputs.push_back(std::move(input));
  }
  request.model = message.model();
  if (message.has_dimensions()) {
    request.dimensions = message.dimensions();
  }
  TESSERA_ASSIGN_OR_RETURN(request.each.pooling, pooling_of(message.pooling()));
  request.normalize = !message.has_normalize() || message.normalize();
  request.each.prompt_options.add_bos =
      !message.has_add_special_tokens() || message.add_special_tokens();
  request.each.priority = message.priority();
  request.each.deterministic = message.deterministic();
  request.each.kv = parse_kv_options(message.kv());
  TESSERA_RETURN_IF_ERROR(read_cache(message.cache(), request.each));
  return request;
}

}  // namespace tessera
