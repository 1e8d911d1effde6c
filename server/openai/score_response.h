#pragma once

#include <string>
#include <string_view>

namespace tessera {

class EmbeddingRun;
struct ScoredPairs;

// Returns: the answer of /v1/score, or of /v1/rerank for pairs that are ranked. A score is the
// cosine of the angle between a pair's embeddings.
// Requires: all inputs have ended.
std::string print_scores(std::string_view model, const EmbeddingRun& run, const ScoredPairs& pairs);

}  // namespace tessera
