#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/request/embedding_request.h"

namespace tessera {

// Pairs of embedded texts, and the form of their answer. The inputs are the first texts of pairs,
// then the second ones.
struct ScoredPairs {
  std::size_t firsts = 0;  // number of first texts: one that is in each pair, or one a pair
  bool ranked = false;     // of /v1/rerank: pairs are sorted by their score, the best first
  std::size_t top_n = 0;   // only as many of the best pairs; 0: all
  std::vector<std::string> documents;  // second texts as printed JSON; empty: the answer has none
};

struct ScoreRequest {
  EmbeddingRequest embed;
  ScoredPairs pairs;
};

// Parses and checks a body of /v1/score in one of vLLM's forms: text_1 and text_2, queries and
// items, queries and documents, or data_1 and data_2. Each is a text or a list of texts.
// Errors: InvalidArgument with the field's name (error.h); also of a field that is unknown.
absl::StatusOr<ScoreRequest> parse_score_request(std::string_view body);

// The same for a body of /v1/rerank, as Jina, Cohere and vLLM define it.
absl::StatusOr<ScoreRequest> parse_rerank_request(std::string_view body);

}  // namespace tessera
