#pragma once

#include <cstdint>

namespace tessera {

// A scorer computes a token's significance from the attention probabilities a that the token
// received from the scored queries (KvScoring). The query heads of a KV head are aggregated onto
// it, so keys are never repeated.
//
// A scorer is one type and one line of the table below it, for every backend. Its type derives
// from ScorerTraits, a mean of sums, and hides some of its members:
//   add_head(sum, weight, factor)  Returns: sum plus the contribution of one query head. Its
//                                  attention to the token is a = weight * factor. V is one float or
//                                  a vector of them, with fma, max, +, *.
//   share(heads)                   factor of the sum over the query heads of a KV head
//   kMeanOverQueries               true: the significance is the score over the number of scored
//                                  queries after the token
//   kMaximum                       true: the score is the highest contribution of any query and
//                                  head, not a sum
//   kReplays                       true: the queries are those of a section's replay
//                                  (KvPolicy::section)
//   kWeighsOutput                  true: a is divided by the root mean square of the residual
//                                  stream at the query (KvScoreArgs::residual). kv_compress
//                                  multiplies a score by the squared norm of its value. Needs
//                                  kReplays, and Backend::weighs_output

// A sum of attention over the scored queries, mean over the heads.
struct ScorerTraits {
  static constexpr bool kMeanOverQueries = false;
  static constexpr bool kMaximum = false;
  static constexpr bool kReplays = false;
  static constexpr bool kWeighsOutput = false;
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor) {
    return V::fma(weight, factor, sum);
  }
  static constexpr float share(int32_t heads) { return 1.0f / static_cast<float>(heads); }
};

// No scores: tokens rank by position, and later ones are kept. No query is scored.
struct NoScorer : ScorerTraits {};

// Mean of a over the later scored queries, mean over the heads.
struct MeanScorer : ScorerTraits {
  static constexpr bool kMeanOverQueries = true;
};

// Sum of a over the scored queries, mean over the heads.
struct SumScorer : ScorerTraits {};

// Sum of a^2 over queries and heads.
struct SquaresScorer : ScorerTraits {
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor) {
    const V received = weight * factor;
    return V::fma(received, received, sum);
  }
  static constexpr float share(int32_t /*heads*/) { return 1.0f; }
};

// The most attention that a token gets from any query and any query head while the model repeats
// the tokens. The engine makes these queries: the replay of a section (KvPolicy::section). No
// question takes part, so the score serves every later one.
struct ReplayScorer : ScorerTraits {
  static constexpr bool kMaximum = true;
  static constexpr bool kReplays = true;
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor) {
    return V::max(sum, weight * factor);
  }
  static constexpr float share(int32_t /*heads*/) { return 1; }
};

// The change of a layer's output that the loss of a token causes, while the model repeats the
// tokens. A lost token with attention a and value v changes the attention's output by about a * v.
// The score is the sum of squares of a * |v| / rms(x) over queries and query heads. x is the
// residual stream that enters the layer, which grows from layer to layer. So layers compete for one
// budget by their relative changes.
//
// A projection of v to the layer's output changes little
// (docs/measurements/2026-11-24-output-scores.md).
struct ReplayOutputScorer : SquaresScorer {
  static constexpr bool kReplays = true;
  static constexpr bool kWeighsOutput = true;
};

// The name is the value of the policy field `scorer`. Values go between ranks: add new ones last.
#define TESSERA_KV_SCORERS(SCORER) \
  SCORER(none, NoScorer)           \
  SCORER(mean, MeanScorer)         \
  SCORER(sum, SumScorer)           \
  SCORER(squares, SquaresScorer)   \
  SCORER(replay, ReplayScorer)     \
  SCORER(replay_output, ReplayOutputScorer)

enum class KvScorer : uint8_t {
#define TESSERA_SCORER(name, Type) name,
  TESSERA_KV_SCORERS(TESSERA_SCORER)
#undef TESSERA_SCORER
};

// Returns: call(Type()) for the scorer's type.
template <class Call>
constexpr auto with_scorer(KvScorer scorer, Call&& call) {
  switch (scorer) {
#define TESSERA_SCORER(name, Type) \
  case KvScorer::name:             \
    return call(Type());
    TESSERA_KV_SCORERS(TESSERA_SCORER)
#undef TESSERA_SCORER
  }
  return call(NoScorer());
}

// Returns: true if the scored queries are those of a section's replay.
constexpr bool replays(KvScorer scorer) {
  return with_scorer(scorer, [](auto type) { return decltype(type)::kReplays; });
}

// Returns: true if attention counts by the change of the layer's output (kWeighsOutput).
constexpr bool weighs_output(KvScorer scorer) {
  return with_scorer(scorer, [](auto type) { return decltype(type)::kWeighsOutput; });
}

// Returns: a token's score after one scored query. received: contributions of all heads, times
// share().
template <class Scorer>
constexpr float score_after(float score, float received) {
  if constexpr (Scorer::kMaximum) {
    return received > score ? received : score;
  } else {
    return score + received;
  }
}

// One float as the vector of a scorer, for backends without vectors. Products are rounded before
// they are added.
struct ScorerFloat {
  float value;

  static constexpr ScorerFloat fma(ScorerFloat a, ScorerFloat b, ScorerFloat c) {
    return {a.value * b.value + c.value};
  }
  static constexpr ScorerFloat max(ScorerFloat a, ScorerFloat b) {
    return {a.value > b.value ? a.value : b.value};
  }
  friend constexpr ScorerFloat operator+(ScorerFloat a, ScorerFloat b) {
    return {a.value + b.value};
  }
  friend constexpr ScorerFloat operator*(ScorerFloat a, ScorerFloat b) {
    return {a.value * b.value};
  }
};

}  // namespace tessera
