#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/embeddings/embedding_request.h"

namespace tessera {

// Parses and checks a body of /v1/embeddings. A field that is unknown is refused.
// Errors: InvalidArgument with the field's name (error.h).
absl::StatusOr<EmbeddingRequest> parse_embeddings_request(std::string_view body);

}  // namespace tessera
