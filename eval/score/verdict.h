#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "eval/score/ratio.h"

namespace tessera {

// Pure statistics: from paired counts to a verdict, without models, tasks or files.

// How much a preset may cost. Each limit is for the upper end of a one-sided 95 % interval, so a
// verdict needs evidence: few questions are undecided, not lossless.
struct VerdictLimits {
  double kl = 0;    // nats, mean over the counted decode positions
  double lost = 0;  // share of the reference's right answers that are lost
};
inline constexpr VerdictLimits kLosslessLimits{.kl = 0.01, .lost = 0.02};
// 0.05 nats are 5 % of perplexity. Answers decide where there are any, else the divergence.
inline constexpr VerdictLimits kNearLimits{.kl = 0.05, .lost = 0.05};
// Fewer contexts say nothing about their spread.
inline constexpr size_t kFewestContexts = 5;

// The evidence of one context about a preset, paired with the reference on the same tokens.
// Questions of one context are not independent, so a bootstrap draws contexts, never questions.
struct ContextEvidence {
  Ratio kl;    // nats over decode positions after the policy acted
  Ratio lost;  // lost answers of the reference's right ones
};

// A mean and its two one-sided 95 % bounds: each end is exceeded in 5 % of cases.
struct Bounds {
  double value = 0;
  double low = 0;
  double high = 0;
};

enum class Verdict : uint8_t { lossless, near, no, undecided };
std::string_view name_of(Verdict verdict);

struct Judgement {
  Verdict verdict = Verdict::undecided;
  std::string reason;
  size_t contexts = 0;
  std::optional<Bounds> kl;    // no value: no position counts
  std::optional<Bounds> lost;  // share, 0 to 1; no value: no answer counts
};

// Both return the ratio of sums over contexts, with bounds from drawing contexts (eval/score/
// statistics.h). The same seed draws the same contexts.
// Requires: contexts, each with a denominator.
//
// Percentiles of the drawn means, moved outwards for few contexts (the expanded percentile interval
// of Hesterberg, "What Teachers Should Know about the Bootstrap", 2015).
Bounds percentile_bounds(std::span<const Ratio> contexts, uint64_t seed);

// Percentiles of the distance from the mean in standard errors (bootstrap-t: Efron and Tibshirani,
// "An Introduction to the Bootstrap", 1993, section 12.5). Divergences are skewed: most contexts
// are near the reference, few are far. Percentiles of means are then too low. For 12 contexts from
// a lognormal distribution with sigma 1, the upper bound is above the mean in 87 % of cases. That
// of percentile_bounds is in 82 %.
Bounds studentized_bounds(std::span<const Ratio> contexts, uint64_t seed);

// Returns: the one-sided 95 % bounds of a share of which `count` in `of` independent draws were
// seen (Clopper and Pearson, 1934). So no loss in 30 answers is a share of at most 9.5 %.
// Requires: count <= of, of > 0.
Bounds binomial_bounds(int64_t count, int64_t of);

// Judges one preset.
//   lossless   both upper bounds are below kLosslessLimits
//   near       the upper bound of lost answers, or of the divergence if no answer counts, is below
//              kNearLimits
//   no         the lower bound of the same is not below kNearLimits
//   undecided  anything else, and fewer contexts than kFewestContexts
// Gains never count: only right answers of the reference can be lost. The bounds of the
// divergence are studentized_bounds. Those of lost answers are the wider ones of percentile_bounds
// and binomial_bounds, because a bootstrap of no losses has no width. The same seed gives the same
// judgement.
Judgement judge(std::span<const ContextEvidence> contexts, uint64_t seed);

}  // namespace tessera
