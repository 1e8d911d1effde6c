#pragma once

#include "absl/status/statusor.h"
#include "server/request/embedding_request.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// Errors: InvalidArgument that names the field.
absl::StatusOr<EmbeddingRequest> parse_embed_request(const v1::EmbedRequest& message);

}  // namespace tessera
