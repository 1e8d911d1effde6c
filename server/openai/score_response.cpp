#include "server/openai/score_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "server/base/unique_id.h"
#include "server/generation/embedding_run.h"
#include "server/json/print_json.h"
#include "server/openai/score_request.h"

namespace tessera {

namespace {

constexpr std::size_t kIdLetters = 24;

struct Scored {
  std::size_t index = 0;  // of the pair
  float score = 0;
};

std::vector<Scored> scores_of(const EmbeddingRun& run, const ScoredPairs& pairs) {
  std::vector<Scored> scores;
  for (std::size_t i = pairs.firsts; i < run.size(); ++i) {
    const std::size_t pair = i - pairs.firsts;
    const std::size_t first = pairs.firsts == 1 ? 0 : pair;
    scores.push_back({pair, static_cast<float>(run.cosine(first, i))});
  }
  return scores;
}

// Pairs with the same score keep their order.
void rank(std::vector<Scored>& scores, std::size_t top_n) {
  std::stable_sort(scores.begin(), scores.end(),
                   [](const Scored& a, const Scored& b) { return a.score > b.score; });
  if (top_n > 0 && top_n < scores.size()) {
    scores.resize(top_n);
  }
}

void print_result(const Scored& one, const ScoredPairs& pairs, std::string& out) {
  auto end = std::back_inserter(out);
  if (!pairs.ranked) {
    fmt::format_to(end, R"({{"index":{},"object":"score","score":{}}})", one.index, one.score);
    return;
  }
  fmt::format_to(end, R"({{"index":{},)", one.index);
  if (!pairs.documents.empty()) {
    fmt::format_to(end, R"("document":{{"text":{}}},)", pairs.documents[one.index]);
  }
  fmt::format_to(end, R"("relevance_score":{}}})", one.score);
}

}  // namespace

std::string print_scores(std::string_view model, const EmbeddingRun& run,
                         const ScoredPairs& pairs) {
  std::vector<Scored> scores = scores_of(run, pairs);
  std::string reply;
  reply.reserve(run.answer_bytes());
  auto end = std::back_inserter(reply);
  const std::string id = unique_letters(kIdLetters);
  const std::string name = print_json(model);
  if (pairs.ranked) {
    rank(scores, pairs.top_n);
    fmt::format_to(end, R"({{"id":"rerank-{}","model":{},"results":[)", id, name);
  } else {
    fmt::format_to(end, R"({{"id":"score-{}","object":"list","created":{},"model":{},"data":[)", id,
                   unix_seconds(), name);
  }
  for (const Scored& one : scores) {
    reply += &one == &scores.front() ? "" : ",";
    print_result(one, pairs, reply);
  }
  fmt::format_to(end,
                 R"(],"usage":{{"prompt_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}}}}}})",
                 run.prompt_tokens(), run.prompt_tokens(), run.cached_tokens());
  return reply;
}

}  // namespace tessera
