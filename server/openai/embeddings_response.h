#pragma once

#include <string>
#include <string_view>

namespace tessera {

class EmbeddingRun;

// Returns: the answer of /v1/embeddings.
// Requires: all inputs have ended.
std::string print_embeddings(std::string_view model, const EmbeddingRun& run);

}  // namespace tessera
