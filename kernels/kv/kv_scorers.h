#pragma once

#include <cstdint>

#include "kernels/kv/scorers/a2sf.h"
#include "kernels/kv/scorers/keyformer.h"
#include "kernels/kv/scorers/mean.h"
#include "kernels/kv/scorers/none.h"
#include "kernels/kv/scorers/recurrence.h"
#include "kernels/kv/scorers/replay.h"
#include "kernels/kv/scorers/replay_output.h"
#include "kernels/kv/scorers/scissorhands.h"
#include "kernels/kv/scorers/squares.h"
#include "kernels/kv/scorers/sum.h"

namespace tessera {

// A scorer computes a token's significance from the attention probabilities a that the token
// received from the scored queries (KvScoring). The query heads of a KV head are aggregated onto
// it, so keys are never repeated.
//
// A scorer is one file of scorers/ and one line of the table below, for every backend. Its type
// derives from ScorerTraits, a mean of sums, and overrides some of its members:
//   add_head(sum, weight, factor, even)  Returns: sum plus the contribution of one query head. Its
//                                        attention to the token is a = weight * factor. even: 1 /
//                                        (number of tokens that the query attends to). V is one
//                                        float or a vector of them, with fma, at_least, max, +, *.
//   share(heads)                         factor of the sum over the query heads of a KV head
//   kDecays                              true: each scored query first multiplies the token's
//                                        score by KvPolicy::score_decay
//   kMeanOverQueries                     true: the significance is the score over the number of
//                                        scored queries after the token
//   kMaxOverHeads                        true: add_head takes a maximum, not a sum
//   kHasState                            true: the score has the bits of a state, not a sum. The
//                                        type then also has, with ages in positions after the
//                                        token's own:
//   update(state, sum, age)              Returns: the state after a query
//   significance(state, age)             Returns: the significance at the next query, not negative
//   kOwnSoftmax                          true: a is not attention's probability, but that of a
//                                        softmax of the weights (attention's * noise) to the power
//                                        1 / temperature. The type then also has:
//   temperature(generated)               at least 1. generated: KvScoring::generated()
//   noise(layer, query, token, log)      at least 1. query and token are positions, log is the
//                                        backend's logarithm
//   kReplays                             true: the queries are those of a section's replay
//                                        (KvPolicy::section)
//   kWeighsOutput                        true: a is divided by the root mean square of the residual
//                                        stream at the query (KvScoreArgs::residual). kv_compress
//                                        multiplies a score by the squared norm of its value. Needs
//                                        kReplays, and Backend::weighs_output
// The name is the value of the policy field `scorer`. Values go between ranks: add new ones last.
#define TESSERA_KV_SCORERS(SCORER)         \
  SCORER(none, NoScorer)                   \
  SCORER(mean, MeanScorer)                 \
  SCORER(sum, SumScorer)                   \
  SCORER(squares, SquaresScorer)           \
  SCORER(scissorhands, ScissorhandsScorer) \
  SCORER(a2sf, A2sfScorer)                 \
  SCORER(recurrence, RecurrenceScorer)     \
  SCORER(keyformer, KeyformerScorer)       \
  SCORER(replay, ReplayScorer)             \
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

// Returns: true if the backend must compute another softmax for the scorer.
constexpr bool has_own_softmax(KvScorer scorer) {
  return with_scorer(scorer, [](auto type) { return decltype(type)::kOwnSoftmax; });
}

// Returns: true if the scored queries are those of a section's replay.
constexpr bool replays(KvScorer scorer) {
  return with_scorer(scorer, [](auto type) { return decltype(type)::kReplays; });
}

// Returns: true if attention counts by the change of the layer's output (kWeighsOutput).
constexpr bool weighs_output(KvScorer scorer) {
  return with_scorer(scorer, [](auto type) { return decltype(type)::kWeighsOutput; });
}

// Returns: a scorer's temperature and noise; 1 without a softmax of its own.
constexpr float softmax_temperature(KvScorer scorer, int32_t generated) {
  return with_scorer(scorer, [&](auto type) { return decltype(type)::temperature(generated); });
}
template <class Log>
constexpr float softmax_noise(KvScorer scorer, int32_t layer, int32_t query, int32_t token,
                              Log&& log) {
  return with_scorer(scorer,
                     [&](auto type) { return decltype(type)::noise(layer, query, token, log); });
}

// Returns: a token's score after one scored query. sum: contributions of all heads, times share().
// decay: KvScoring::decay. age: positions from the token to the query.
template <class Scorer>
constexpr float score_after(float score, float sum, float decay, int32_t age) {
  if constexpr (Scorer::kHasState) {
    return Scorer::update(score, sum, age);
  } else {
    return (Scorer::kDecays ? decay * score : score) + sum;
  }
}

// One float as the vector of a scorer, for backends without vectors. Products are rounded before
// they are added.
struct ScorerFloat {
  float value;

  static constexpr ScorerFloat fma(ScorerFloat a, ScorerFloat b, ScorerFloat c) {
    return {a.value * b.value + c.value};
  }
  static constexpr ScorerFloat at_least(ScorerFloat a, ScorerFloat b) {
    return {a.value >= b.value ? 1.0f : 0.0f};
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
