#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/request/embedding_request.h"

namespace tessera {

class BodyFields;

// Reads the fields that say how embeddings are made, and the model's name. All routes that need
// embeddings have them.
void read_embedding_options(BodyFields& fields, EmbeddingRequest& out);

// Parses and checks a body of /v1/embeddings. A field that is unknown is refused.
// Errors: InvalidArgument with the field's name (error.h).
absl::StatusOr<EmbeddingRequest> parse_embeddings_request(std::string_view body);

}  // namespace tessera
